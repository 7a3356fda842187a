"""All-reduce through memory that the ranks of a node share: copies and sums, no messages.

    round 0   each rank writes block 0          into its tray of the shared window, except the
              ── meet ──                        chunk that it will sum itself
    round 1   writes block 1
              sums its chunk of block 0         over the trays of all ranks, in their order
              ── meet ──
    round 2   writes block 2
              sums its chunk of block 1
              reads the sums of block 0         that the other ranks made …

The kernel copies a message between processes page by page.  Here each rank reads the others'
numbers in place, and meets them once for each block and once more at the end.
"""

import time

import numpy as np

from ...backend import Array, asarray_like, is_host, to_host
from ..arguments import Combine, chunk_bounds, find_operator
from ..collectives.all_reduce import blocked_ring, ring
from ..communicator import Communicator, OwnAlgorithm
from ..subgroup import Subgroup
from .shared_memory import TRAY_BYTES, NodeMemory, can_share, node_memory

SHORT = 1 << 14         # bytes; up to this, each rank of a single node sums all of it itself


def shared(comm: Communicator, flat: Array, op: str) -> None:
    """All-reduce `flat` in place over an MPI shared window, and by the ring between nodes.

    Every rank gets the same bits: on a node each sum is made in the order of ranks.  A communicator
    makes the window at its first call.  On one node no bytes are sent: `cost.predict` has no entry,
    and a trace has a span "all_reduce in shared memory" in place of messages.  (The messages of the
    ring between nodes are traced.)  A Work (a non-blocking collective), a Subgroup, and
    processors other than x86-64 run the blocked ring.
    """
    memory = getattr(comm, "memory", None) or node_memory(comm)
    if memory is None:
        blocked_ring(comm, flat, op)
        return
    began = time.perf_counter() if comm.rank_state.trace is not None else None
    if not is_host(flat):
        work = to_host(flat)
        in_blocks(comm, memory, work, op)
        flat[...] = asarray_like(work, flat)
    elif flat.nbytes <= SHORT and memory.num_lanes == comm.size:
        all_sum_all(memory, flat, find_operator(op))
    else:
        in_blocks(comm, memory, flat, op)
    if comm.trace is not None:
        comm.trace.spans.append((comm.world_rank, "all_reduce in shared memory", began,
                                 time.perf_counter()))
        comm.rank_state.log("shared", flat.nbytes)


def all_sum_all(memory: NodeMemory, flat: np.ndarray, combine: Combine) -> None:
    """Reduce a short array: the ranks meet once, then each rank sums all of it."""
    trays = memory.next_trays(flat.dtype, flat.size)
    trays[memory.rank][...] = flat
    memory.meet()
    if len(trays) > 1:
        combine(trays[0], trays[1], out=flat)
    for tray in trays[2:]:
        combine(flat, tray, out=flat)


class TrayBlock:
    """A block of the array on its way through the trays.

    A summed chunk is stored in the tray of the rank that summed it, at the chunk's own place.
    """

    def __init__(self, comm: Communicator, memory: NodeMemory, array: np.ndarray, op: str):
        self.comm, self.memory, self.array, self.op = comm, memory, array, op
        self.trays = memory.next_trays(array.dtype, array.size)
        self.bounds = chunk_bounds(array.size, memory.num_lanes)
        sums = memory.rank < memory.num_lanes
        self.start, self.stop = self.bounds[memory.rank] if sums else (0, 0)

    def write(self) -> None:
        """Write all but this rank's chunk into its tray."""
        array, tray = self.array, self.trays[self.memory.rank]
        tray[:self.start] = array[:self.start]
        tray[self.stop:array.size] = array[self.stop:]

    def sum(self) -> None:
        """Sum this rank's chunk over all ranks of the node, then between the nodes."""
        memory, own = self.memory, slice(self.start, self.stop)
        combine, mine = find_operator(self.op), self.array[own]
        parts = [tray[own] for tray in self.trays]
        total = parts[memory.rank]
        if memory.rank > 1:             # first the ranks before this one
            combine(parts[0], parts[1], out=total)
            for part in parts[2:memory.rank]:
                combine(total, part, out=total)
            combine(total, mine, out=mine)
        elif memory.rank == 1:
            combine(parts[0], mine, out=mine)
        for part in parts[memory.rank + 1:]:
            combine(mine, part, out=mine)
        if len(memory.lane) > 1:
            ring(Subgroup(self.comm, memory.lane), mine, self.op)
        total[...] = mine

    def read(self) -> None:
        """Read the chunks that the other ranks have summed."""
        for k, (start, stop) in enumerate(self.bounds):
            if k != self.memory.rank:
                self.array[start:stop] = self.trays[k][start:stop]


def in_blocks(comm: Communicator, memory: NodeMemory, flat: np.ndarray, op: str) -> None:
    """Reduce a long array block by block, as drawn at the head of this file."""
    length = TRAY_BYTES // flat.itemsize
    ahead: TrayBlock | None = None                  # the block to sum next …
    behind: TrayBlock | None = None                 # … and the one to read next
    for start in range(0, flat.size + 2 * length, length):
        block = None
        if start < flat.size:
            block = TrayBlock(comm, memory, flat[start:start + length], op)
            block.write()
        if ahead is not None:
            ahead.sum()
        if behind is not None:
            behind.read()
        ahead, behind = block, ahead
        if ahead is None and behind is None:
            return
        memory.meet()


SHARED = {("all_reduce", "shared"): OwnAlgorithm(shared, can_share)}
