"""The ledger: which bytes are alive, now and at the peak, by kind, on one rank.

    parameters · gradients · optimizer states · communication     said by whoever allocates them
    activations                                                   what `ctx.save` keeps

Nothing but `ctx.save` keeps an activation alive, so who hooks into it sees them all; the other
kinds live in a few long arrays, and their makers say so (`backend.allocated`).  Storages are
counted, each once, until they are freed: two views of one array are one storage.  Temporaries
inside an operation, and the optimizer's scratch block, are not seen.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..autograd import Tensor, saved_tensors_hooks
from ..backend import Array, observing_allocations, storage

KINDS = ("parameters", "gradients", "optimizer states", "communication", "activations")


class _Kept:
    """A saved array; when the graph lets go of it, so does the ledger."""

    __slots__ = ("array", "__weakref__")

    def __init__(self, array: Array):
        self.array = array


class Ledger:
    """`live` and `peak` bytes; `live_of[kind]`, `peak_of[kind]`, and `at_peak[kind]`.

    `parameters` are not counted, nor arrays made before `recording`, unless they are handed to
    `add`.  With `now`, a clock in seconds, `history` lists (seconds, kind, live bytes of the kind)
    after every change.
    """

    def __init__(self, parameters: Iterable[Tensor] = (), now: Callable[[], float] | None = None):
        self.live = self.peak = 0
        self.live_of: Counter[str] = Counter()
        self.peak_of: Counter[str] = Counter()
        self.at_peak: dict[str, int] = {}
        self.history: list[tuple[float, str, int]] = []
        self._now = now
        self._known = {id(storage(p.data)) for p in parameters}
        self._uses: Counter[int] = Counter()

    @contextmanager
    def recording(self) -> Iterator["Ledger"]:
        """Context in which what is allocated or saved is counted, until it is freed."""
        with saved_tensors_hooks(self._pack, lambda kept: kept.array), \
                observing_allocations(self.add):
            yield self

    def add(self, kind: str, array: Array) -> None:
        """Count the memory of `array` as `kind` until it is freed; a second time does nothing."""
        owner = storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if key in self._known:
            return
        self._known.add(key)
        self._change(kind, num_bytes)
        weakref.finalize(owner, self._freed, kind, key, num_bytes).atexit = False

    def forget_peaks(self) -> None:
        """Peaks count from here: what is alive now, and what is to come."""
        self.peak, self.peak_of, self.at_peak = self.live, +self.live_of, dict(self.live_of)

    def _freed(self, kind: str, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self._change(kind, -num_bytes)

    def _change(self, kind: str, num_bytes: int) -> None:
        self.live += num_bytes
        self.live_of[kind] += num_bytes
        self.peak_of[kind] = max(self.peak_of[kind], self.live_of[kind])
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, dict(self.live_of)
        if self._now is not None:
            self.history.append((self._now(), kind, self.live_of[kind]))

    def _pack(self, array: Array) -> _Kept:
        kept = _Kept(array)
        if not hasattr(array, "nbytes"):        # another hook put something else in its place
            return kept
        owner = storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if key not in self._known:
            self._uses[key] += 1
            if self._uses[key] == 1:
                self._change("activations", num_bytes)
            weakref.finalize(kept, self._release, key, num_bytes).atexit = False
        return kept

    def _release(self, key: int, num_bytes: int) -> None:
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            self._change("activations", -num_bytes)
