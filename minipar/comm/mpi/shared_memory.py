"""Memory that the ranks of one node share, and in which they meet: an MPI shared window.

    rank 0   flag │ tray 0 │ tray 1 │ tray 2 │      every rank writes into its own part
    rank 1   flag │ tray 0 │ tray 1 │ tray 2 │      and reads those of all

A flag is a counter: this rank has come to the n-th meeting.  A meeting costs one store, and at
least one load for each rank: far less than a barrier made of messages.  A tray holds one block of
an array.  Trays are used in turn: two meetings after a rank last wrote to a tray, no other rank
reads it any more.

A rank that sees another's flag also sees all that was written before it, on processors that show
stores in order (x86-64).  On other processors `can_share` is false.  (MPI_Win_sync would order them
on any processor, but needs MPI_Win_lock_all, which hangs in MPICH 5.0 from a process's tenth window
on.)

MPICH removes the segment's name as soon as all ranks have it, so there nothing stays behind in
/dev/shm, however the job ends.  Hoefler et al. 2013, "MPI + MPI".
"""

import os
import time
from functools import lru_cache
from typing import Any

import numpy as np

from ...environment import shows_stores_in_order
from ..subgroup import Subgroup

NUM_TRAYS = 3
TRAY_BYTES = 1 << 20              # bytes; long enough to be worth a meeting, and stays in a cache
FLAG_BYTES = 4096                 # bytes (a page) reserved for a flag; the trays start behind them
MOST_KEPT = 256            # pairs of dtype and length whose views of the trays are kept
SPINS = 100                 # looks at a flag before this rank yields its core …
YIELDS = 2000               # … and yields, before it sleeps between looks
yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))


class NodeMemory:
    """Collective.  The trays and flags of those ranks of `comm` that are on this rank's node.

    `ranks` are the ranks of this node, and `rank` is this one's number among them.  `num_lanes` is
    the number of ranks of the smallest node; `lane` are the ranks with number `rank` on each node.
    """

    def __init__(self, comm: Any):
        by_node: dict[int, list[int]] = {}
        for rank in range(comm.size):
            by_node.setdefault(comm.node_of(rank), []).append(rank)
        self.ranks = by_node[comm.node]
        self.rank, self.num_lanes = self.ranks.index(comm.rank), min(map(len, by_node.values()))
        self.lane = [ranks[self.rank] for ranks in by_node.values()] \
            if self.rank < self.num_lanes else []
        self.comm, self.count, self.num_uses = comm, 0, 0
        MPI = comm.MPI
        what = "make a shared window", None, None, 0, comm.label
        with comm.rank_state.wait_for(what, comm.members):
            node = comm.mpi_comm.Split(comm.node, comm.rank)
            self.window = MPI.Win.Allocate_shared(FLAG_BYTES + NUM_TRAYS * TRAY_BYTES, 1, comm=node)
            self.parts = [self.window.Shared_query(k)[0] for k in range(len(self.ranks))]
            self.flags = [memoryview(part).cast("B")[:8].cast("q") for part in self.parts]
            self.flags[self.rank][0] = 0
            node.Barrier()
            node.Free()
        self.views = lru_cache(MOST_KEPT)(self._make_views)

    def next_trays(self, dtype: np.dtype, length: int) -> list[np.ndarray]:
        """The beginning of the next tray of each rank of the node: `length` elements of `dtype`."""
        self.num_uses += 1
        return self.views(dtype, length)[self.num_uses % NUM_TRAYS]

    def _make_views(self, dtype: np.dtype, length: int) -> list[list[np.ndarray]]:
        return [[np.frombuffer(part, dtype, length, FLAG_BYTES + i * TRAY_BYTES)
                 for part in self.parts] for i in range(NUM_TRAYS)]

    def meet(self) -> None:
        """Wait until all ranks of the node are here; each then sees what all wrote before."""
        self.count = count = self.count + 1
        self.flags[self.rank][0] = count
        for k, flag in enumerate(self.flags):
            looks = 0
            while flag[0] < count:
                looks += 1
                if looks == SPINS:
                    self._wait_for(k, flag, count)

    def _wait_for(self, k: int, flag: memoryview, count: int) -> None:
        me = self.comm.rank_state
        what = f"meet rank {self.ranks[k]}", None, None, count, self.comm.label     # each its own
        me.waiting = what, [self.comm.members[self.ranks[k]]]
        looks = 0
        while flag[0] < count:
            looks += 1
            self.comm.mpi_comm.Iprobe()     # advances our sends, which the other may wait for
            if me.engine is not None:
                me.engine.resume_all()      # this wait advances the Works of this rank
            if looks < YIELDS:
                yield_core()
            else:
                time.sleep(1e-6)            # the kernel makes about 60 microseconds of it
        me.waiting = None

    def free(self) -> None:
        """Collective on the node.  Free the memory."""
        self.views.cache_clear()
        self.parts = self.flags = []
        self.window.Free()


def can_share(comm: Any) -> bool:
    """True if those ranks of `comm` that are on one node can share memory.

    False inside a Work, which must not block, and for a Subgroup, which cannot make a window
    without the other ranks.  The processor must show stores in order.
    """
    return not isinstance(comm, Subgroup) and not comm.first_tag and shows_stores_in_order()


def node_memory(comm: Any) -> NodeMemory | None:
    """Collective.  The shared memory of `comm`, made at the first call; None unless `can_share`."""
    if not can_share(comm):
        return None
    if comm.memory is None:
        comm.memory = NodeMemory(comm)
    return comm.memory
