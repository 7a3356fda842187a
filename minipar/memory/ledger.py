"""The ledger of saved activations: which bytes wait for backward, now and at the peak.

Nothing but `ctx.save` keeps an activation alive, so who hooks into it sees them all.  The ledger
counts storages, each once, from its first save to its last release: two views of one array are one
storage.  Parameters are no activations; they are left out.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..autograd import Tensor, saved_tensors_hooks
from ..backend import Array


def storage(array: Array) -> Array:
    """The array that owns the memory that `array` is a view of."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


class _Kept:
    """A saved array; when the graph lets go of it, so does the ledger."""

    __slots__ = ("array", "__weakref__")

    def __init__(self, array: Array):
        self.array = array


class Ledger:
    """Bytes of saved activations: `live` and `peak`.  `parameters` are not counted."""

    def __init__(self, parameters: Iterable[Tensor] = ()):
        self.live = self.peak = 0
        self._excluded = {id(storage(p.data)) for p in parameters}
        self._uses: Counter[int] = Counter()

    @contextmanager
    def recording(self) -> Iterator["Ledger"]:
        """Context in which saved arrays are counted (until they are released, also after it)."""
        with saved_tensors_hooks(self._pack, lambda kept: kept.array):
            yield self

    def _pack(self, array: Array) -> _Kept:
        kept, owner = _Kept(array), storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if key not in self._excluded:
            self._uses[key] += 1
            if self._uses[key] == 1:
                self.live += num_bytes
                self.peak = max(self.peak, self.live)
            weakref.finalize(kept, self._release, key, num_bytes).atexit = False
        return kept

    def _release(self, key: int, num_bytes: int) -> None:
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            self.live -= num_bytes
