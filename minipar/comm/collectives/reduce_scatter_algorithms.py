"""Further ways to reduce-scatter: the same bytes as the ring, other orders and fewer rounds."""

import numpy as np

from ...backend import Array
from ..chunks import piece_bounds
from ..communicator import Communicator
from ..subgroup import core_ranks, power_of_two


def pairwise(comm: Communicator, chunks: list[Array], combine) -> None:
    """p - 1 rounds, n(p-1)/p bytes: in round k rank r sends chunk r + k straight to its owner.

        round 1   0 ─▶ 1 ─▶ 2 ─▶ 3 ─▶ 0         every chunk travels once,
        round 2   0 ◀─▶ 2   1 ◀─▶ 3             only sums are not passed on

    In place, as `ring`; the others stay as they were.
    Thakur, Rabenseifner & Gropp 2005, section 4.2.
    """
    p, r = comm.size, comm.rank
    mine = chunks[r]
    arrived = np.empty_like(mine)
    for k in range(1, p):
        comm.sendrecv(chunks[(r + k) % p], (r + k) % p, arrived, (r - k) % p)
        combine(mine, arrived, out=mine)


def recursive_halving(comm: Communicator, chunks: list[Array], combine) -> None:
    """log₂ p rounds, n(p-1)/p bytes: everyone swaps half of what is left with ever nearer ranks.

        round 0   0 ◀─▶ 2   1 ◀─▶ 3             halves: chunks 0 1 to the left, 2 3 to the right
        round 1   0 ◀─▶ 1   2 ◀─▶ 3             then quarters

    If p is no power of two, ⌊log₂ p⌋ + 2 rounds: first some ranks give all they have to a partner,
    and in the end get their chunk from it (`part.power_of_two`).
    Thakur, Rabenseifner & Gropp 2005, section 4.2.
    """
    core, partner = power_of_two(comm)
    r, mine = comm.rank, chunks[comm.rank]
    flat = np.concatenate([chunk.reshape(chunk.size) for chunk in chunks])
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


def core_bounds(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The part of a vector cut by `bounds` that each rank of the core answers for."""
    starts = [bounds[r][0] for r in core_ranks(len(bounds))]
    return list(zip(starts, [*starts[1:], bounds[-1][1]]))


def halve(core: Communicator, flat: Array, bounds: list[tuple[int, int]], combine) -> None:
    """Recursive halving on 2^k ranks; afterwards rank r has its part of `flat` reduced."""
    r, half = core.rank, core.size // 2
    arrived = np.empty_like(flat)
    first = 0                               # of the 2 * half parts that are left
    while half:
        low = flat[bounds[first][0]:bounds[first + half - 1][1]]
        high = flat[bounds[first + half][0]:bounds[first + 2 * half - 1][1]]
        keep, give = (high, low) if r & half else (low, high)
        other = arrived[:keep.size]
        core.sendrecv(give, r ^ half, other, r ^ half)
        combine(keep, other, out=keep)
        first += r & half
        half //= 2
