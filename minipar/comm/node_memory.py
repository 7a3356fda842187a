"""Memory that the ranks of one node share, and where they meet: an MPI shared window.

    rank 0   flag │ first half │ second half │      every rank writes into its own part
    rank 1   flag │ first half │ second half │      and reads those of all

A flag is a counter: "I have come to the n-th meeting".  A meeting costs a store and some loads,
a tenth of a barrier made of messages.  Halves are used in turn: whoever is past the meeting of one
use knows that nobody still reads what the use before it left in the other half.

MPICH takes the segment's name away as soon as all ranks have it, so nothing stays behind in
/dev/shm, however the job ends.  Hoefler et al. 2013, "MPI + MPI".
"""

import os
import time
from typing import Any

import numpy as np

from .communicator import Communicator

HALF = 1 << 19              # bytes: with those of the other ranks it stays in the cache
LINE = 4096                 # bytes that a flag has for itself, and that data starts at
SPINS = 100                 # looks at a flag before this rank lets others have its core …
YIELDS = 2000               # … and before it sleeps between looks
yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))


class NodeMemory:
    """The part of every rank of `comm` that is on this rank's node; all ranks of `comm` make it.

    `ranks` are those of this node, `rank` is this one's number among them, `num_lanes` the number
    of ranks of the node that has fewest, `lane` those that have number `rank` on their node.
    """

    def __init__(self, comm: Communicator):
        by_node: dict[int, list[int]] = {}
        for rank in range(comm.size):
            by_node.setdefault(comm.node_of(rank), []).append(rank)
        self.ranks = by_node[comm.node]
        self.rank, self.num_lanes = self.ranks.index(comm.rank), min(map(len, by_node.values()))
        self.lane = [ranks[self.rank] for ranks in by_node.values()] \
            if self.rank < self.num_lanes else []
        self.comm, self.count, self.num_uses = comm, 0, 0
        MPI = comm.MPI
        with comm.me.watchdog.watching(("make a shared window", None, None, 0, comm.label)):
            node = comm.mpi_comm.Split(comm.node, comm.rank)
            self.window = MPI.Win.Allocate_shared(LINE + 2 * HALF, 1, comm=node)
            self.parts = [self.window.Shared_query(k)[0] for k in range(len(self.ranks))]
            self.flags = [memoryview(part).cast("B")[:8].cast("q") for part in self.parts]
            self.flags[self.rank][0] = 0
            node.Barrier()
            node.Free()
        self.views: dict[np.dtype, list] = {}

    def next_half(self, dtype: np.dtype) -> list[np.ndarray]:
        """Of every rank of the node, the half that is free now, as a vector of `dtype`."""
        halves = self.views.get(dtype)
        if halves is None:
            halves = self.views[dtype] = [
                [np.frombuffer(part, dtype, HALF // dtype.itemsize, start) for part in self.parts]
                for start in (LINE, LINE + HALF)]
        self.num_uses += 1
        return halves[self.num_uses % 2]

    def meet(self) -> None:
        """Wait until all ranks of the node are here; they then see what each wrote before."""
        self.count = count = self.count + 1
        self.flags[self.rank][0] = count
        for k, flag in enumerate(self.flags):
            if flag[0] < count:
                self._wait_for(k, flag, count)

    def _wait_for(self, k: int, flag: memoryview, count: int) -> None:
        me = self.comm.me
        me.watchdog.waiting = (f"meet rank {self.ranks[k]}", None, None, 0, self.comm.label)
        looks = 0
        while flag[0] < count:
            looks += 1
            if me.works is not None:
                me.works.resume_all()       # who waits moves them on meanwhile
            if looks > YIELDS:
                time.sleep(1e-6)            # in truth some 60 microseconds
            elif looks > SPINS:
                yield_core()
        me.watchdog.waiting = None

    def free(self) -> None:
        """Give the memory back; called by all ranks of the node."""
        self.views.clear()
        self.parts = self.flags = []
        self.window.Free()


def node_memory(comm: Any) -> NodeMemory:
    """That of an MPI communicator, made at first use: a collective call.

    Raises TypeError on a simulated cluster, whose ranks share no memory but the program's.
    """
    if not hasattr(comm, "mpi_comm"):
        raise TypeError('algorithm="shared" needs real MPI ranks: start with mpirun, or choose '
                        '"blocked_ring"')
    if comm.memory is None:
        comm.memory = NodeMemory(comm)
    return comm.memory
