"""Gather: one rank collects the arrays of all.

    before   rank 0: a       rank 1: b   rank 2: c
    after    rank 0: a b c   rank 1: ·   rank 2: ·

It is the inverse of a scatter.  Python objects and traces travel as JSON, labelled "control".
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backend import Array
from ..arguments import (
    axis_first,
    check_out,
    deliver,
    find_algorithm,
    joined,
    piece_bounds,
    with_length,
)
from ..communicator import Communicator
from ..subgroup import rooted
from ..trace import Trace
from .scatter import span


def binomial(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """⌈log₂ p⌉ rounds, n(p-1)/p bytes: a binomial scatter backwards; pieces are joined on the way.

        round 0   0 ◀1─ 1     2 ◀3─ 3       4 ◀5─ 5     6 ◀7─ 7
        round 1   0 ◀(2 3)─ 2               4 ◀(6 7)─ 6
        round 2   0 ◀(4 5 6 7)─ 4

    Chan et al. 2007, section 3 (minimum spanning tree gather).
    """
    p, r, have = comm.size, comm.rank, 1
    while have < p:
        if r % (2 * have) == have:
            comm.send(line[span(bounds, r, have)], r - have)
        elif r % (2 * have) == 0 and r + have < p:
            comm.recv(line[span(bounds, r + have, have)], r + have)
        have *= 2


def linear(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """p - 1 rounds, n(p-1)/p bytes: rank 0 receives from the others, one after the other.

        0 ◀─ 1, 0 ◀─ 2, 0 ◀─ 3, …

    No byte is sent twice.  Rank 0 receives n(p-1)/p bytes in any algorithm.
    """
    if comm.rank:
        comm.send(line[slice(*bounds[comm.rank])], 0)
        return
    for r in range(1, comm.size):
        comm.recv(line[slice(*bounds[r])], r)


def gather(comm: Communicator, array: Array, root: int = 0, dim: int = 0, algorithm: str = "auto",
           counts: Sequence[int] | None = None, out: Array | None = None) -> Array | None:
    """Collective.  On `root` the arrays of all ranks, joined along `dim`; None elsewhere.

    The result is written into `out`, if `root` gives one.  Every rank gives the same length or,
    with `counts` (equal on all ranks), the length counts[rank].  Raises ValueError for a length
    other than counts[rank].  An array without axes counts as one of length 1.
    """
    comm.check_peer(root, "root")
    array = array if getattr(array, "ndim", 1) else array.reshape(1)
    p, me = comm.size, (comm.rank - root) % comm.size
    piece = axis_first(array, dim)
    lengths = [piece.shape[0]] * p if counts is None else list(map(int, counts))
    lengths = lengths[root:] + lengths[:root]           # in the order of ranks from the root
    bounds = piece_bounds(sum(lengths), p, lengths)
    if piece.shape[0] != lengths[me]:
        raise ValueError(f"rank {comm.rank} of {p} has length {piece.shape[0]} along axis {dim}; "
                         f"its piece by counts is {lengths[me]}")
    if comm.rank == root:
        check_out(out, array, with_length(array.shape, dim, sum(lengths)))
    line = np.empty((sum(lengths), *piece.shape[1:]), piece.dtype, like=piece)
    line[slice(*bounds[me])] = piece
    collect = find_algorithm(comm, "gather", algorithm, line.nbytes)
    with comm.collective("gather", array, None if counts is None else dim, root=root,
                         dim=dim % array.ndim, counts=counts, algorithm=algorithm):
        collect(rooted(comm, root), line, bounds)
    if comm.rank != root:
        return None
    if root:
        first = bounds[p - root][0]                     # where rank 0's piece is
        line = joined([line[first:], line[:first]])
    return deliver(np.moveaxis(line, 0, dim), out)


def gather_object(comm: Communicator, value: Any, root: int = 0) -> list | None:
    """Collective.  On `root` the JSON-like values of all ranks, in their order; None elsewhere."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with comm.labelled("control"), comm.collective("gather_object", root=root):
        if comm.rank != root:
            comm.send(np.array([text.size], np.int64), root)
            comm.send(text, root)
            return None
        values = []
        for rank in range(comm.size):
            if rank == root:
                values.append(value)
                continue
            size = np.empty(1, np.int64)
            comm.recv(size, rank)
            received = np.empty(int(size[0]), np.uint8)
            comm.recv(received, rank)
            values.append(json.loads(received.tobytes()))
        return values


def gather_trace(comm: Communicator, trace: Trace, root: int = 0) -> Trace | None:
    """Collective.  On `root` the traces of all ranks merged; None elsewhere."""
    lists = gather_object(comm, trace.as_lists(), root)
    return None if lists is None else Trace.merged(map(Trace.from_lists, lists))
