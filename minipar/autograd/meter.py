"""The meter: every operation and every pullback reports what it did.

    Linear  forward   2·rows·in·out FLOPs   bytes of its operands and result   from t0 to t1

It counts FLOPs, bytes and calls exactly, and tells a clock: on a simulated rank the reported work
makes virtual time pass, on a real rank the clock is the wall's.

FLOPs are those that run, not those of a formula:

    1   each +, -, ·, /, √, exp, tanh, log of an element;  each number that a sum or a maximum reads
    2   each multiply-add of a product
    0   copies, views, comparisons, integers

So a causal attention counts only the blocks of pairs that it computes.  An optimizer reports the
FLOPs of its formula.  The engine's additions, where several gradients of a value meet, are not
reported.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..backend import Array

_meter: ContextVar["Meter | None"] = ContextVar("meter", default=None)


def current_meter() -> "Meter | None":
    """The meter that is running in this context, or None."""
    return _meter.get()


class Meter:
    """Counts the work of every operation that runs inside `with meter.running():`.

    `on_start() -> token` is called before an operation and `on_stop(token, name, phase, flops,
    num_bytes)` after it; phase is "forward", "backward", "weights" or "optimizer".
    """

    def __init__(self, on_start: Callable | None = None, on_stop: Callable | None = None):
        self.flops: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self._on_start, self._on_stop = on_start, on_stop

    def start(self) -> object:
        """Note the start of an operation; pass the result to `stop`."""
        return self._on_start() if self._on_start else None

    def stop(self, token: object, name: str, phase: str, flops: int,
             arrays: tuple[Array, ...]) -> None:
        """Report work: FLOPs, and `arrays` read or written."""
        num_bytes = sum(getattr(array, "nbytes", 0) for array in arrays)
        if flops or num_bytes:
            self.flops[name, phase] += flops
            self.bytes[name, phase] += num_bytes
            self.calls[name, phase] += 1
            if self._on_stop:
                self._on_stop(token, name, phase, flops, num_bytes)

    def total_flops(self, phase: str | None = None, names: tuple[str, ...] = ()) -> int:
        """FLOPs of one phase (of all), of the operations `names` (of all)."""
        return sum(count for (name, when), count in self.flops.items()
                   if phase in (None, when) and (not names or name in names))

    @contextmanager
    def running(self) -> Iterator["Meter"]:
        """Context in which this meter is told of every operation."""
        token = _meter.set(self)
        try:
            yield self
        finally:
            _meter.reset(token)
