"""The meter: every metered operation and pullback (the function of one gradient) reports its work.

    Linear  forward   2·rows·in·out FLOPs   bytes of its operands and result       from t0 to t1
            weights   2·rows·in·out FLOPs   bytes of dL/dy and of its result dw    from t0 to t1

It counts FLOPs, bytes and calls, and reports them to a clock.  On a simulated rank the reported
work makes virtual time pass; on a real rank time passes by itself.

FLOPs are counted for each call, from the shapes of its arrays, not by a formula for the model:

    1   each +, -, ·, /, √, exp, tanh, log of an element;  each number that a sum or a maximum reads
    2   each multiply-add of a product
    0   copies, views, comparisons, integers

So a causal attention counts only the blocks of pairs that it computes.  An optimizer reports the
FLOPs of its formula.  Two things are not reported: the engine's additions where several gradients
of a value meet, and the arrays saved in forward that a pullback reads.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from ..backend import Array

_meter: ContextVar["Meter | None"] = ContextVar("meter", default=None)


def current_meter(metered: bool = True) -> "Meter | None":
    """The meter that runs in this context, or None.

    With `metered=False`, for a view or a message, only a meter that `sees_views` is returned.
    """
    return _meter.get() if metered or getattr(_meter.get(), "sees_views", False) else None


class Meter:
    """Counts the work of every metered operation inside `with meter.running():`.

    `on_start() -> token` is called before an operation and `on_stop(token, name, phase, flops,
    num_bytes)` after it, if it had any FLOPs or bytes; phase is "forward", "backward", "weights" or
    "optimizer".  With `sees_views`, `forward` is called for views and messages too.
    """

    sees_views = False

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

    def forward(self, function: Any, ctx: Any, arrays: list, options: dict) -> Array:
        """Run `function`'s forward, and report it."""
        start = self.start()
        out = function.forward(ctx, *arrays, **options)
        num_flops, ctx.backward_flops = function.flops(ctx, out, *arrays)
        self.stop(start, function.__name__, "forward", num_flops, (*arrays, out))
        return out

    def backward(self, node: Any, grad: Array) -> list:
        """Run `node`'s backward; report what it computes at once, and its pullbacks when they run.
        """
        name, flops = node.function.__name__, node.ctx.backward_flops
        if flops is None:
            raise RuntimeError(f"a meter is running, but none ran when {name} was computed: let it "
                               "run during the forward too")
        start = self.start()
        grads = node.function.backward(node.ctx, grad)
        done = [i for i, (target, result) in enumerate(zip(node.inputs, grads))
                if target is not None and not callable(result)]
        self.stop(start, name, "backward", sum(flops[i] for i in done),
                  (grad, *[grads[i] for i in done]) if done else ())

        def metered(pullback: Callable[[], Array], phase: str, num_flops: int) -> Array:
            start = self.start()
            result = pullback()
            self.stop(start, name, phase, num_flops, (grad, result))
            return result

        metered_grads = [
            partial(metered, result, "weights" if target.weight_only else "backward", flops[i])
            if target is not None and callable(result) else result
            for i, (target, result) in enumerate(zip(node.inputs, grads))]
        return metered_grads + list(grads[len(metered_grads):])     # too many: the engine's error

    def total_flops(self, phase: str | None = None, names: tuple[str, ...] = ()) -> int:
        """FLOPs of the operations `names` in one phase; by default of all operations and phases."""
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
