"""All-gather: every rank gives one chunk, and every rank gets all of them.

    before   rank 0: a       rank 1: b       rank 2: c
    after    rank 0: a b c   rank 1: a b c   rank 2: a b c

As a linear map over all ranks its transpose is the reduce-scatter.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...backend import Array
from ..arguments import axis_first, check_out, deliver, find_algorithm, piece_bounds, with_length
from ..communicator import Communicator
from ..subgroup import power_of_two
from .reduce_scatter import core_bounds


def ring(comm: Communicator, chunks: list[Array]) -> None:
    """p - 1 rounds, n(p-1)/p bytes: every chunk travels once around the ring.

        round 0   rank r sends its own chunk r to rank r+1
        round 1   rank r passes on chunk r-1, which it has just received, …

    In place: before, chunks[rank] is this rank's own; afterwards all are filled.
    Chan, Heimlich, Purkayastha & van de Geijn 2007, section 4.2.
    """
    p, r = comm.size, comm.rank
    right, left = (r + 1) % p, (r - 1) % p
    passing = [chunks[(r - step) % p] for step in range(p)]
    for known, arriving in pairwise(passing):
        comm.sendrecv(known, right, arriving, left)


def all_gather(comm: Communicator, array: Array, dim: int = 0, total: int | None = None,
               algorithm: str = "auto", counts: Sequence[int] | None = None,
               out: Array | None = None) -> Array:
    """Collective.  The arrays of all ranks, one after the other along `dim`: in `out`, if given.

    Every rank gives the same length.  With `total`, it gives its piece of `total` by
    `chunk_bounds`; with `counts` (equal on all ranks), the length counts[rank].  Raises ValueError
    if the length does not fit `total` or `counts`.  An array without axes counts as one of length
    1: the result is then a vector with one number of each rank.
    """
    array = array if getattr(array, "ndim", 1) else array.reshape(1)
    piece = axis_first(array, dim)
    uneven = None if total is None and counts is None else dim
    if total is None:
        total = piece.shape[0] * comm.size if counts is None else sum(map(int, counts))
    bounds = piece_bounds(total, comm.size, counts)
    start, stop = bounds[comm.rank]
    if piece.shape[0] != stop - start:
        raise piece_error(comm, piece.shape[0], dim, total, stop - start)
    check_out(out, array, with_length(array.shape, dim, total))
    there = None if out is None else np.moveaxis(out, dim, 0)
    in_place = there is not None and there.flags.c_contiguous
    whole: Array = there if in_place else np.empty((total, *piece.shape[1:]), piece.dtype,
                                                   like=piece)
    whole[start:stop] = piece
    gather = find_algorithm(comm, "all_gather", algorithm, whole.nbytes)
    with comm.collective("all_gather", array, uneven, dim=dim % array.ndim, counts=counts,
                         total=None if uneven is None else total, algorithm=algorithm):
        gather(comm, [whole[start:stop] for start, stop in bounds])
    if in_place:
        return out
    return deliver(np.moveaxis(whole, 0, dim), out)


def recursive_doubling(comm: Communicator, chunks: list[Array]) -> None:
    """log₂ p rounds, n(p-1)/p bytes: swap all chunks so far with ranks 1, 2, 4 … away.

        round 0   0 ◀─▶ 1   2 ◀─▶ 3             each has 2 chunks,
        round 1   0 ◀─▶ 2   1 ◀─▶ 3             then 4

    If p is no power of two, there are ⌊log₂ p⌋ + 2 rounds, and `bruck` needs fewer.  Some ranks
    first give their chunk to a partner, and in the end get all from it (`subgroup.power_of_two`).
    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    core, partner = power_of_two(comm)
    bounds = piece_bounds(sum(c.size for c in chunks), comm.size, [c.size for c in chunks])
    flat = np.empty((bounds[-1][1],), chunks[0].dtype, like=chunks[0])
    mine = chunks[comm.rank]
    if core is None:
        comm.send(mine, partner)
        comm.recv(flat, partner)
    else:
        flat[slice(*bounds[comm.rank])] = mine.reshape(mine.size)
        if partner is not None:
            comm.recv(flat[slice(*bounds[partner])], partner)
        double(core, flat, core_bounds(bounds))
        if partner is not None:
            comm.send(flat, partner)
    for chunk, (start, stop) in zip(chunks, bounds):
        chunk[...] = flat[start:stop].reshape(chunk.shape)


def double(core: Communicator, flat: Array, bounds: list[tuple[int, int]]) -> None:
    """Recursive doubling on 2^k ranks: each begins with its part of `flat` and ends with all parts.
    """
    r, have = core.rank, 1
    while have < core.size:
        mine, theirs = (slice(bounds[first][0], bounds[first + have - 1][1])
                        for first in (r & -have, (r ^ have) & -have))
        core.sendrecv(flat[mine], r ^ have, flat[theirs], r ^ have)
        have *= 2


def bruck(comm: Communicator, chunks: list[Array]) -> None:
    """⌈log₂ p⌉ rounds, n(p-1)/p bytes, for any p: pass all chunks so far to a farther rank.

        round 0   r ─(r)▶ r-1                   rank r has chunks r, r+1,
        round 1   r ─(r, r+1)▶ r-2              then r … r+3; the last round only the missing

    Bruck, Ho, Kipnis, Upfal & Weathersby 1997.
    """
    p, r = comm.size, comm.rank
    order = [chunks[(r + i) % p] for i in range(p)]         # as they come in: r, r+1, …
    bounds = piece_bounds(sum(c.size for c in order), p, [c.size for c in order])
    flat = np.empty((bounds[-1][1],), order[0].dtype, like=order[0])
    flat[slice(*bounds[0])] = order[0].reshape(order[0].size)
    have = 1
    while have < p:
        more = min(have, p - have)
        coming = flat[bounds[have][0]:bounds[have + more - 1][1]]
        comm.sendrecv(flat[:bounds[more - 1][1]], (r - have) % p, coming, (r + have) % p)
        have += more
    for chunk, (start, stop) in zip(order[1:], bounds[1:]):
        chunk[...] = flat[start:stop].reshape(chunk.shape)


def piece_error(comm: Communicator, came: int, dim: int, total: int, piece: int) -> ValueError:
    """The error for a piece of length `came`, where one of `piece` was expected."""
    return ValueError(f"rank {comm.rank} of {comm.size} has length {came} along axis {dim}; its "
                      f"piece of {total} is {piece}")
