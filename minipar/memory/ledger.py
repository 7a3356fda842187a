"""The ledger: which bytes are alive, now and at the peak, by kind, on one rank.

    parameters · gradients · optimizer states · communication     said by whoever allocates them
    activations                                                   what `ctx.save` keeps
    temporaries                                                   what operations hand on
    offloaded                                                     elsewhere: counted by itself

Nothing but `ctx.save` keeps an activation alive, so who hooks into it sees them all; the other
kinds live in a few long arrays, and their makers say so (`record_allocation`).  Storages are
counted, each once, until they are freed: two views of one array are one storage.  Temporaries are
counted by a `StepLedger` (`temporaries.py`); what an operation makes and drops inside of it, and
the optimizer's scratch block, are not seen.
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
ADVICE = {"activations": "compute them again in backward (--remat full), let them wait in a file "
                         "(--offload activations), or take smaller microbatches (--accumulate)",
          "optimizer states": "let them wait in a file (--offload optimizer), or shard them over "
                              "more ranks (--strategy zero1)"}
SHARD = ("shard everything over more ranks (--strategy fsdp), or let the shards wait in a file "
         "(--strategy fsdp --offload parameters,optimizer)")


class OutOfMemory(MemoryError):
    """More than the limit was asked for; the message says for what, what is there, what helps."""


def megabytes(count: float) -> str:
    """A number of bytes for a message."""
    return f"{count / 1e6:,.1f} MB"


class _Kept:
    """A saved array; when the graph lets go of it, so does the ledger."""

    __slots__ = ("array", "__weakref__")

    def __init__(self, array: Array):
        self.array = array


class Ledger:
    """`live` and `peak` bytes; `live_of[kind]`, `peak_of[kind]`, and `at_peak[kind]`.

    `parameters` are not counted, nor arrays made before `recording`, unless they are handed to
    `add`.  With `now`, a clock in seconds, `history` lists (seconds, kind, live bytes of the kind)
    after every change.  What is "offloaded" has a `live_of` and a `peak_of`, but is no part of
    `live`.  Where `live` would exceed `limit`, OutOfMemory is raised.
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
        """Context in which what is allocated or saved is counted, until it is freed."""
        with saved_tensors_hooks(self._pack, lambda kept: kept.array), \
                observing_allocations(self.add):
            yield self

    def add(self, kind: str, array: Array) -> None:
        """Count the memory of `array` as `kind` until it is freed; a second time does nothing."""
        owner = storage(array)
        key, num_bytes = id(owner), owner.nbytes
        if kind == TEMPORARIES or key in self._known or key in self._uses:
            return
        self._ask(kind, num_bytes)
        self._known.add(key)
        self._change(kind, num_bytes)
        weakref.finalize(owner, self._freed, kind, key, num_bytes).atexit = False

    def forget_peaks(self) -> None:
        """Peaks count from here: what is alive now, and what is to come."""
        self.peak, self.peak_of, self.at_peak = self.live, +self.live_of, dict(self.live_of)

    def forget_history(self) -> None:
        """`history` begins here: with what is alive now."""
        if self._now is not None:
            self.history = [(self._now(), kind, live) for kind, live in self.live_of.items()]

    def _freed(self, kind: str, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self._change(kind, -num_bytes)

    def explain(self, wanted: str) -> str:
        """One sentence for a lack of memory: what was asked for, what there is, what helps."""
        kinds = sorted((kind for kind in +self.live_of if kind != OFFLOADED),
                       key=lambda kind: -self.live_of[kind])
        parts = ", ".join(f"{kind} {megabytes(self.live_of[kind])}" for kind in kinds)
        limit = f" of {megabytes(self.limit)}" if self.limit < math.inf else ""
        advice = ADVICE.get(kinds[0], SHARD) if kinds else SHARD
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
        if not hasattr(array, "nbytes"):        # another hook put something else in its place
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
