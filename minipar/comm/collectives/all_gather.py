"""All-gather: everyone gives one chunk, everyone gets all of them.

    before   rank 0: a       rank 1: b       rank 2: c
    after    rank 0: a b c   rank 1: a b c   rank 2: a b c

As a linear map over all ranks its transpose is the reduce-scatter.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...backend import Array
from ..chunks import (
    axis_first,
    check_out,
    deliver,
    find_algorithm,
    neighbours,
    piece_bounds,
    with_length,
)
from ..communicator import Communicator


def ring(comm: Communicator, chunks: list[Array]) -> None:
    """p - 1 rounds, n(p-1)/p bytes: every chunk travels once around the ring.

        round 0   rank r sends its own chunk r to rank r+1
        round 1   rank r passes on chunk r-1, which it has just received, …

    In place: before, chunks[rank] is this rank's own; afterwards all are filled.
    Chan, Heimlich, Purkayastha & van de Geijn 2007, section 4.2.
    """
    after, before = neighbours(comm)
    p, r = comm.size, comm.rank
    passing = [chunks[(r - step) % p] for step in range(p)]
    for known, coming in pairwise(passing):
        comm.sendrecv(known, after, coming, before)


ALGORITHMS = {"ring": ring, "auto": ring}


def all_gather(comm: Communicator, array: Array, dim: int = 0, total: int | None = None,
               algorithm: str = "auto", counts: Sequence[int] | None = None,
               out: Array | None = None) -> Array:
    """The arrays of all ranks, one after the other along `dim`: in `out`, if there is one.

    Every rank gives the same length, or, with `total`, its piece of `total` by `chunk_bounds`, or,
    with `counts` (equal on all ranks), counts[rank].  Raises ValueError if this rank's length is
    not that.
    """
    gather = find_algorithm(ALGORITHMS, algorithm)
    piece = axis_first(array, dim)
    uneven = None if total is None and counts is None else dim
    if total is None:
        total = piece.shape[0] * comm.size if counts is None else sum(counts)
    bounds = piece_bounds(total, comm.size, counts)
    start, stop = bounds[comm.rank]
    if piece.shape[0] != stop - start:
        raise ValueError(f"rank {comm.rank} of {comm.size} has length {piece.shape[0]} along axis "
                         f"{dim}; its piece of {total} is {stop - start}")
    check_out(out, array, with_length(array.shape, dim, total))
    there = None if out is None else np.moveaxis(out, dim, 0)
    in_place = there is not None and there.flags.c_contiguous
    whole = there if in_place else np.empty_like(piece, shape=(total, *piece.shape[1:]), order="C")
    whole[start:stop] = piece
    with comm.collective("all_gather", array, uneven, dim=dim % array.ndim, counts=counts,
                         total=None if uneven is None else total, algorithm=algorithm):
        gather(comm, [whole[start:stop] for start, stop in bounds])
    if in_place:
        return out
    return deliver(np.moveaxis(whole, 0, dim), out)
