"""Reduce-scatter: everyone gives p chunks, rank r gets the sum of all the chunks number r.

    before   rank 0: a0 a1 a2    rank 1: b0 b1 b2    rank 2: c0 c1 c2
    after    rank 0: Σ0          rank 1: Σ1          rank 2: Σ2

With an all-gather of the results it is an all-reduce.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...backend import Array
from ..chunks import (
    deliver,
    find_algorithm,
    find_operator,
    fit_out,
    neighbours,
    piece_bounds,
    with_length,
)
from ..communicator import Communicator


def ring(comm: Communicator, chunks: list[Array], combine) -> None:
    """p - 1 rounds, n(p-1)/p bytes: each partial sum travels once around the ring and ends at home.

        round 0   rank r sends chunk r-1 to rank r+1, which adds its own
        round 1   rank r passes on chunk r-2, …   until chunk r arrives at rank r, complete

    In place: afterwards chunks[rank] holds the result, the others partial sums.
    Patarasuk & Yuan 2009, section 3.
    """
    after, before = neighbours(comm)
    p, r = comm.size, comm.rank
    passing = [chunks[(r - 1 - step) % p] for step in range(p)]
    incoming = np.empty_like(max(chunks, key=len))
    for gone, mine in pairwise(passing):
        arrived = incoming if len(mine) == len(incoming) else incoming[:len(mine)]
        comm.sendrecv(gone, after, arrived, before)
        combine(mine, arrived, out=mine)


ALGORITHMS = {"ring": ring, "auto": ring}


def reduce_scatter(comm: Communicator, array: Array, dim: int = 0, op: str = "sum",
                   algorithm: str = "auto", counts: Sequence[int] | None = None,
                   out: Array | None = None, in_place: bool = False) -> Array:
    """The reduction over all ranks of `array`, of which rank r gets the r-th piece along `dim`.

    Pieces have the lengths `counts` or are cut by `chunk_bounds`.  The result is written into
    `out`, if there is one: of the piece's shape, or contiguous with as many elements, such as a
    slice of a flat buffer.  `array` is not changed, unless it shares memory with `out`, or
    `in_place`: then the result is a view of it, and the rest of it is lost.  Raises ValueError if
    that needs a contiguous array and dim 0, and does not have them.
    """
    if in_place and (dim or not getattr(array, "flags", None) or not array.flags.c_contiguous):
        raise ValueError(f"in_place needs a contiguous array and dim=0, not {dim=} and shape "
                         f"{array.shape}: leave in_place out")
    combine, reduce = find_operator(op, array.dtype), find_algorithm(ALGORITHMS, algorithm)
    bounds = piece_bounds(array.shape[dim], comm.size, counts)
    start, stop = bounds[comm.rank]
    place = fit_out(out, array, with_length(array.shape, dim, stop - start))
    work = array if in_place else np.moveaxis(array, dim, 0).copy()     # contiguous, and ours
    with comm.collective("reduce_scatter", array, op=op, dim=dim % array.ndim,
                         counts=counts, algorithm=algorithm):
        reduce(comm, [work[start:stop] for start, stop in bounds], combine)
    piece = deliver(np.moveaxis(work[start:stop], 0, dim), place)
    return piece if out is None else out
