"""The ledger: live and peak bytes on one rank, by kind.

    parameters · gradients · optimizer states · communication     reported where they are allocated
    activations                                                   arrays kept by `ctx.save`
    temporaries                                                   arrays between two operations
    offloaded                                                     on the host: counted separately

Only `ctx.save` keeps an activation alive, so its hooks see every activation.  The kinds in the
table's first line live in a few long arrays, which the code that allocates them reports
(`record_allocation`).  The ledger counts each storage once, until it is freed; two views of one
array are one storage.  `Ledger` ignores temporaries; `StepLedger` counts them (`temporaries.py`).
Neither counts arrays that an operation both allocates and frees, nor the optimizer's scratch
blocks.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..autograd import Tensor, saved_tensors_hooks
from ..backend import Array, observing_allocations
from ..backend.views import storage

OFFLOADED, TEMPORARIES = "offloaded", "temporaries"
KINDS = ("parameters", "gradients", "optimizer states", "communication", "activations", TEMPORARIES,
         OFFLOADED)
ADVICE = {"activations": "recompute them in backward (--remat full), keep them in a file "
                         "(--offload activations), or use smaller microbatches (--accumulate)",
          "optimizer states": "keep them in a file (--offload optimizer), or shard them over "
                              "more ranks (--strategy zero1)"}
SHARD_ADVICE = ("shard everything over more ranks (--strategy fsdp), or keep the shards in a file "
                "(--strategy fsdp --offload parameters,optimizer)")


class OutOfMemory(MemoryError):
    """An allocation would exceed the limit; the message says which, what is alive and what helps.
    """


def megabytes(count: float) -> str:
    """`count` bytes as text in MB, for a message."""
    return f"{count / 1e6:,.1f} MB"


class _Kept:
    """A saved array; when the graph frees it, a finalizer tells the ledger."""

    __slots__ = ("array", "__weakref__")

    def __init__(self, array: Array):
        self.array = array


class Ledger:
    """Counts bytes: `live`, `peak`; by kind `live_of[kind]`, `peak_of[kind]` and `at_peak[kind]`.

    It never counts the tensors in `parameters`.  An array allocated before `recording` is counted
    only if the caller passes it to `add`, or if an operation saves it.  With `now`, a clock in
    seconds, `history` lists (seconds, kind, live bytes of the kind) after every change.
    "offloaded" has a `live_of` and a `peak_of`, but is no part of `live`.  Raises OutOfMemory where
    `live` would exceed `limit`.
    """

    def __init__(self, parameters: Iterable[Tensor] = (), now: Callable[[], float] | None = None,
                 limit: float = math.inf):
        self.live = self.peak = 0
        self.limit = limit
        self.live_of: Counter[str] = Counter()
        self.peak_of: Counter[str] = Counter()
        self.at_peak: dict[str, int] = {}
        self.history: list[tuple[float, str, int]] = []
        self._now = now
        self._known = {id(storage(p.data)) for p in parameters}
        self._uses: Counter[int] = Counter()

    @contextmanager
    def recording(self) -> Iterator["Ledger"]:
        """Context in which allocated and saved arrays are counted, until they are freed."""
        with saved_tensors_hooks(self._pack, lambda kept: kept.array), \
                observing_allocations(self.add):
            yield self

    def add(self, kind: str, array: Array) -> None:
        """Count the storage of `array` as `kind` until it is freed.

        A temporary, or a storage that is counted already, changes nothing.
        """
        owner = storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if kind == TEMPORARIES or key in self._known or key in self._uses:
            return
        self._ask(kind, num_bytes)
        self._known.add(key)
        self._change(kind, num_bytes)
        weakref.finalize(owner, self._freed, kind, key, num_bytes).atexit = False

    def forget_peaks(self) -> None:
        """Restart the peaks from the bytes that are alive now."""
        self.peak, self.peak_of, self.at_peak = self.live, +self.live_of, dict(self.live_of)

    def forget_history(self) -> None:
        """Restart `history` from the bytes that are alive now."""
        if self._now is not None:
            self.history = [(self._now(), kind, live) for kind, live in self.live_of.items()]

    def _freed(self, kind: str, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self._change(kind, -num_bytes)

    def explain(self, wanted: str) -> str:
        """One sentence on a lack of memory: `wanted`, the bytes in use by kind, and what helps."""
        kinds = sorted((kind for kind in +self.live_of if kind != OFFLOADED),
                       key=lambda kind: -self.live_of[kind])
        parts = ", ".join(f"{kind} {megabytes(self.live_of[kind])}" for kind in kinds)
        limit = f" of {megabytes(self.limit)}" if self.limit < math.inf else ""
        advice = ADVICE.get(kinds[0], SHARD_ADVICE) if kinds else SHARD_ADVICE
        return (f"out of memory: {wanted} where {megabytes(self.live)}{limit} are in use "
                f"({parts or 'Python and its libraries are not counted'}): {advice}")

    def _ask(self, kind: str, num_bytes: int) -> None:
        if kind != OFFLOADED and self.live + num_bytes > self.limit:
            raise OutOfMemory(self.explain(f"{megabytes(num_bytes)} of {kind} were asked for"))

    def _change(self, kind: str, num_bytes: int) -> None:
        if kind != OFFLOADED:
            self.live += num_bytes
        self.live_of[kind] += num_bytes
        self.peak_of[kind] = max(self.peak_of[kind], self.live_of[kind])
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, dict(self.live_of)
        if self._now is not None:
            self.history.append((self._now(), kind, self.live_of[kind]))

    def _pack(self, array: Array) -> _Kept:
        kept = _Kept(array)
        if not hasattr(array, "nbytes"):        # another hook put a note in the array's place
            return kept
        owner = storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if key not in self._known:
            self._uses[key] += 1
            if self._uses[key] == 1:
                self._start_use(key, num_bytes)
            weakref.finalize(kept, self._release, key, num_bytes).atexit = False
        return kept

    def _start_use(self, key: int, num_bytes: int) -> None:
        self._ask("activations", num_bytes)
        self._change("activations", num_bytes)

    def _release(self, key: int, num_bytes: int) -> None:
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            self._end_use(key, num_bytes)

    def _end_use(self, key: int, num_bytes: int) -> None:
        self._change("activations", -num_bytes)
