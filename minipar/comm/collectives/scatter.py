"""Scatter: one rank cuts its array and sends each rank a piece.

    before   rank 0: a b c   rank 1: ·   rank 2: ·
    after    rank 0: a       rank 1: b   rank 2: c

It is the inverse of a gather.
"""

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
from ..errors import check_axis, check_numbers, check_place
from ..subgroup import rooted


def binomial(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """⌈log₂ p⌉ rounds, n(p-1)/p bytes: each rank that has pieces sends on the farther half.

        round 0   0 ─(4 5 6 7)▶ 4
        round 1   0 ─(2 3)▶ 2               4 ─(6 7)▶ 6
        round 2   0 ─1▶ 1     2 ─3▶ 3       4 ─5▶ 5     6 ─7▶ 7

    Chan et al. 2007, section 3 (minimum spanning tree scatter).
    """
    p, r = comm.size, comm.rank
    half = 1 << (p - 1).bit_length() >> 1
    while half:
        if r % (2 * half) == 0 and r + half < p:
            comm.send(line[span(bounds, r + half, half)], r + half)
        elif r % (2 * half) == half:
            comm.recv(line[span(bounds, r, half)], r - half)
        half //= 2


def span(bounds: list[tuple[int, int]], first: int, num_pieces: int) -> slice:
    """The slice of `num_pieces` pieces from number `first` on, or of as many as there are."""
    return slice(bounds[first][0], bounds[min(first + num_pieces, len(bounds)) - 1][1])


def linear(comm: Communicator, line: Array, bounds: list[tuple[int, int]]) -> None:
    """p - 1 rounds, n(p-1)/p bytes: rank 0 sends each rank its piece, one after the other.

        0 ─▶ 1, 0 ─▶ 2, 0 ─▶ 3, …

    No byte is sent twice.  Rank 0 sends n(p-1)/p bytes in any algorithm.
    """
    if comm.rank:
        comm.recv(line[slice(*bounds[comm.rank])], 0)
        return
    for r in range(1, comm.size):
        comm.send(line[slice(*bounds[r])], r)


def scatter(comm: Communicator, array: Array | None, root: int = 0, dim: int = 0,
            algorithm: str = "auto", counts: Sequence[int] | None = None, out: Array | None = None,
            shape: Sequence[int] | None = None, dtype: Any = None) -> Array:
    """Collective.  This rank's piece, along `dim`, of rank `root`'s array: in `out`, if given.

    On the other ranks `array` gives the shape and dtype of the root's array.  If it is None,
    `shape` and `dtype` do.  By default the dtype is that of `out`, and the shape that of `out` with
    sum(counts) along `dim`.  Without `out` the shape is (sum(counts),).  Pieces have the lengths
    `counts` (the same list on all ranks) or are cut by `chunk_bounds`.
    """
    comm.check_peer(root, "root")
    if out is not None:
        check_place(out)
    if array is not None:
        check_numbers(array)
    if array is not None and (shape is not None and array.shape != tuple(shape)
                              or dtype is not None and array.dtype != dtype):
        raise ValueError(f"array is {array.dtype} {array.shape}, but shape= and dtype= say {dtype} "
                         f"{shape}: leave them out, or make them equal")
    if array is None:
        array = stand_in(comm.rank, root, dim, counts, out, shape, dtype)
    check_axis(array, dim)
    p, me = comm.size, (comm.rank - root) % comm.size
    pieces = piece_bounds(array.shape[dim], p, counts)
    start, stop = pieces[comm.rank]
    check_out(out, array, with_length(array.shape, dim, stop - start))
    ranks = [(root + i) % p for i in range(p)]
    bounds = piece_bounds(array.shape[dim], p, [pieces[r][1] - pieces[r][0] for r in ranks])
    if comm.rank == root:
        whole = axis_first(array, dim)
        line = joined([whole[pieces[root][0]:], whole[:pieces[root][0]]]) if root else whole
    else:
        others = [n for i, n in enumerate(array.shape) if i != dim % array.ndim]
        line = np.empty((array.shape[dim], *others), array.dtype,
                        like=array if out is None else out)      # on the device of `out`
    deal = find_algorithm(comm, "scatter", algorithm, line.nbytes)
    with comm.collective("scatter", array, root=root, dim=dim % array.ndim, counts=counts,
                         algorithm=algorithm):
        deal(rooted(comm, root), line, bounds)
    piece = np.moveaxis(line[slice(*bounds[me])], 0, dim)
    return piece.copy() if out is None else deliver(piece, out)


def stand_in(rank: int, root: int, dim: int, counts: Sequence[int] | None, out: Array | None,
             shape: Sequence[int] | None, dtype: Any) -> np.ndarray:
    """An array of the root's shape and dtype that takes no memory.

    Raises ValueError on the root, and if shape or dtype are not known.
    """
    if rank == root:
        raise ValueError(f"rank {root} is the root of the scatter: give its array, not None")
    if dtype is None and out is not None:
        dtype = out.dtype
    if shape is None and counts is not None:
        total = sum(map(int, counts))
        shape = (total,) if out is None else with_length(out.shape, dim, total)
    if dtype is None or shape is None:
        raise ValueError(f"rank {rank} gives None to scatter: say dtype=, and shape= of the root's "
                         "array (or counts=, if that is a vector)")
    return np.broadcast_to(np.zeros((), dtype), shape)
