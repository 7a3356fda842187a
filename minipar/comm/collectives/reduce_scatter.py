"""Reduce-scatter: every rank gives p chunks, and rank r gets the sum of all ranks' chunk r.

    before   rank 0: a0 a1 a2    rank 1: b0 b1 b2    rank 2: c0 c1 c2
    after    rank 0: Σ0          rank 1: Σ1          rank 2: Σ2

With an all-gather of the results it is an all-reduce.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ..arguments import (
    Combine,
    check_out,
    deliver,
    find_algorithm,
    find_operator,
    fit_out,
    joined,
    piece_bounds,
    with_length,
)
from ..communicator import Communicator
from ..errors import check_axis
from ..subgroup import core_ranks, power_of_two


def ring(comm: Communicator, chunks: list[Array], combine: Combine) -> None:
    """p - 1 rounds, n(p-1)/p bytes: each partial sum travels around the ring, to its owner.

        round 0   rank r sends chunk r-1 to rank r+1, which adds its own
        round 1   rank r passes on chunk r-2, …   until chunk r arrives at rank r, complete

    In place: afterwards chunks[rank] holds the result, the others partial sums.
    Patarasuk & Yuan 2009, section 3.
    """
    p, r = comm.size, comm.rank
    right, left = (r + 1) % p, (r - 1) % p
    passing = [chunks[(r - 1 - step) % p] for step in range(p)]
    buffer = np.empty_like(max(chunks, key=len))
    longest = len(buffer)
    for sent, mine in itertools.pairwise(passing):
        arrived = buffer if len(mine) == longest else buffer[:len(mine)]
        comm.sendrecv(sent, right, arrived, left)
        combine(mine, arrived, out=mine)


def reduce_scatter(comm: Communicator, array: Array, dim: int = 0, op: str | Combine = "sum",
                   algorithm: str = "auto", counts: Sequence[int] | None = None,
                   out: Array | None = None, in_place: bool = False) -> Array:
    """Collective.  Rank r's piece, along `dim`, of the reduction of `array` over all ranks.

    `op` is sum, prod, max, min or a function.  Pieces have the lengths `counts`, or are cut by
    `chunk_bounds`.  The result is written into `out`, if given.  `out` has the piece's shape, or is
    contiguous with as many elements, such as a slice of a flat buffer.  With `in_place` the sum is
    made in `array`, whose other pieces may be overwritten; without `out` the result is a view of
    it.  Raises ValueError for `in_place` unless `array` is contiguous and `dim` is 0.  Otherwise
    `array` is not changed, unless it shares memory with `out`.
    """
    combine = find_operator(op, array)
    if not -array.ndim <= dim < array.ndim or in_place and (dim or not array.flags.c_contiguous):
        raise cut_error(array, dim)
    check_out(array if in_place else None, array, array.shape)          # not read-only
    reduce = find_algorithm(comm, "reduce_scatter", algorithm, array.nbytes)
    bounds = piece_bounds(array.shape[dim], comm.size, counts)
    start, stop = bounds[comm.rank]
    place = fit_out(out, array, with_length(array.shape, dim, stop - start))
    buffer = array if in_place else np.moveaxis(array, dim, 0).copy()     # contiguous
    with comm.collective("reduce_scatter", array, op=op, dim=dim % array.ndim,
                         counts=counts, algorithm=algorithm):
        reduce(comm, [buffer[start:stop] for start, stop in bounds], combine)
    piece = deliver(np.moveaxis(buffer[start:stop], 0, dim), place)
    return piece if out is None else out


def cut_error(array: Array, dim: int) -> ValueError:
    """The error for an axis that `array` lacks, or whose pieces are not contiguous in place."""
    check_axis(array, dim)
    return ValueError(f"in_place needs a contiguous array and dim=0, not {dim=} and shape "
                      f"{array.shape}: leave in_place out")


def pairwise(comm: Communicator, chunks: list[Array], combine: Combine) -> None:
    """p - 1 rounds, n(p-1)/p bytes: in round k rank r sends chunk r + k straight to its owner.

        round 1   0 ─▶ 1 ─▶ 2 ─▶ 3 ─▶ 0         every chunk travels once,
        round 2   0 ◀─▶ 2   1 ◀─▶ 3             and no partial sums are passed on

    It works in place like `ring`, but the other chunks stay as they were.
    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    p, r = comm.size, comm.rank
    mine = chunks[r]
    arrived = np.empty_like(mine)
    for k in range(1, p):
        comm.sendrecv(chunks[(r + k) % p], (r + k) % p, arrived, (r - k) % p)
        combine(mine, arrived, out=mine)


def recursive_halving(comm: Communicator, chunks: list[Array], combine: Combine) -> None:
    """log₂ p rounds, n(p-1)/p bytes: swap half of what is left with ranks p/2, p/4 … 1 away.

        round 0   0 ◀─▶ 2   1 ◀─▶ 3             halves: chunks 0 1 to the left, 2 3 to the right
        round 1   0 ◀─▶ 1   2 ◀─▶ 3             then quarters

    If p is no power of two, there are ⌊log₂ p⌋ + 2 rounds.  Some ranks first give all they have to
    a partner, and in the end get their chunk from it (`subgroup.power_of_two`).
    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    core, partner = power_of_two(comm)
    r, mine = comm.rank, chunks[comm.rank]
    flat = joined([chunk.reshape(chunk.size) for chunk in chunks])
    if core is None:
        comm.send(flat, partner)
        comm.recv(mine, partner)
        return
    bounds = piece_bounds(flat.size, comm.size, [chunk.size for chunk in chunks])
    if partner is not None:
        arrived = np.empty_like(flat)
        comm.recv(arrived, partner)
        combine(flat, arrived, out=flat)
    halve(core, flat, core_bounds(bounds), combine)
    if partner is not None:
        comm.send(flat[slice(*bounds[partner])], partner)
    mine[...] = flat[slice(*bounds[r])].reshape(mine.shape)


def halve(core: Communicator, flat: Array, bounds: list[tuple[int, int]],
          combine: Combine) -> None:
    """Recursive halving on 2^k ranks: afterwards rank r has its part of `flat` reduced."""
    r, half = core.rank, core.size // 2
    arrived = np.empty_like(flat)
    first = 0                               # the first of the 2 * half parts that are left
    while half:
        low = flat[bounds[first][0]:bounds[first + half - 1][1]]
        high = flat[bounds[first + half][0]:bounds[first + 2 * half - 1][1]]
        keep, give = (high, low) if r & half else (low, high)
        other = arrived[:keep.size]
        core.sendrecv(give, r ^ half, other, r ^ half)
        combine(keep, other, out=keep)
        first += r & half
        half //= 2


def core_bounds(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, stop) of what each rank of the core reduces: its chunk and its partner's."""
    starts = [bounds[r][0] for r in core_ranks(len(bounds))]
    return list(zip(starts, [*starts[1:], bounds[-1][1]]))
