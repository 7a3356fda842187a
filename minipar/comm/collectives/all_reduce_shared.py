"""All-reduce through memory that the ranks of a node share: copies and sums, no messages.

    rank 0   a0 a1 a2 │            │ Σ0 = a0 + b0 + c0 │ Σ0 Σ1 Σ2       ▶ into the shared window
    rank 1   b0 b1 b2 │ ▶ all but  │ Σ1 = a1 + b1 + c1 │ ◀ out of it    ◀ out of it
    rank 2   c0 c1 c2 │   its own  │ Σ2 = …            │

A message between processes is copied by the kernel, page by page; here every rank reads the others'
numbers where they are.  No bytes are sent, so none can be counted: see `shared`.
"""

import time

import numpy as np

from ...backend import Array, is_host, like, to_host
from ..communicator import Communicator
from ..node_memory import HALF, NodeMemory, node_memory
from .all_reduce import ring
from .all_reduce_algorithms import blocked_ring
from .chunks import chunk_bounds, find_operator
from .part import Part

SHORT = 1 << 14         # bytes: from here on it pays that each rank sums a part only


def shared(comm: Communicator, flat: Array, op: str) -> None:
    """Over an MPI shared window; with several nodes, the ring between them.

    Sums are made in the order of ranks, by one rank for all: the same bits everywhere.  The window
    is made at a communicator's first call.  There are no messages on one node, so `cost.predict`
    has no entry and a trace shows one span, "all_reduce in shared memory", instead of messages;
    what the ring sends between nodes is traced as ever.  In a Work, which must not sit and wait,
    it is the blocked ring.  Raises TypeError on a simulated cluster.
    """
    if getattr(comm, "first_tag", 0):
        blocked_ring(comm, flat, op)
        return
    memory, combine = node_memory(comm), find_operator(op)
    began = time.perf_counter()
    work = flat if is_host(flat) else to_host(flat)
    if work.nbytes <= SHORT and memory.num_lanes == comm.size:
        all_sum_all(memory, work, combine)
    else:
        length = HALF // work.itemsize
        for start in range(0, work.size, length):
            each_sums_a_part(comm, memory, work[start:start + length], op)
    if work is not flat:
        flat[...] = like(work, flat)
    if comm.trace is not None:
        comm.trace.spans.append((comm.world_rank, "all_reduce in shared memory", began,
                                 time.perf_counter()))
        comm.me.log("shared", flat.nbytes)


def all_sum_all(memory: NodeMemory, flat: np.ndarray, combine) -> None:
    """One meeting: everyone gives all, and sums all for itself."""
    n, given = flat.size, memory.next_half(flat.dtype)
    given[memory.rank][:n] = flat
    memory.meet()
    first, *others = given
    if others:
        combine(first[:n], others[0][:n], out=flat)
    for other in others[1:]:
        combine(flat, other[:n], out=flat)


def each_sums_a_part(comm: Communicator, memory: NodeMemory, block: np.ndarray, op: str) -> None:
    """Two meetings: rank r gives all but chunk r, sums chunk r, takes the others' sums.

    A sum lies where its rank's own chunk would have been.
    """
    combine, r, given = find_operator(op), memory.rank, memory.next_half(block.dtype)
    bounds = chunk_bounds(block.size, memory.num_lanes)
    start, stop = bounds[r] if r < len(bounds) else (0, 0)
    given[r][:start] = block[:start]
    given[r][stop:block.size] = block[stop:]
    memory.meet()
    if r < len(bounds):
        mine, total = block[start:stop], given[r][start:stop]
        parts = [mine if k == r else part[start:stop] for k, part in enumerate(given)]
        if len(parts) == 1:
            total[...] = mine
        else:
            combine(parts[0], parts[1], out=total)
        for part in parts[2:]:
            combine(total, part, out=total)
        if len(memory.lane) > 1:
            ring(Part(comm, memory.lane), total, op)
        mine[...] = total
    memory.meet()
    for k, (start, stop) in enumerate(bounds):
        if k != r:
            block[start:stop] = given[k][start:stop]
