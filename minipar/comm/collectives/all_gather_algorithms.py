"""Further ways to all-gather: the same bytes as the ring in fewer rounds, for short arrays."""

import numpy as np

from ...backend import Array
from ..chunks import piece_bounds
from ..communicator import Communicator
from ..subgroup import power_of_two
from .reduce_scatter_algorithms import core_bounds


def recursive_doubling(comm: Communicator, chunks: list[Array]) -> None:
    """log₂ p rounds, n(p-1)/p bytes: everyone swaps all they have with ever farther ranks.

        round 0   0 ◀─▶ 1   2 ◀─▶ 3             each has 2 chunks,
        round 1   0 ◀─▶ 2   1 ◀─▶ 3             then 4

    If p is no power of two, ⌊log₂ p⌋ + 2 rounds: first some ranks give their chunk to a partner,
    and in the end get all from it (`part.power_of_two`); then Bruck's is better.
    Thakur, Rabenseifner & Gropp 2005, section 4.1.
    """
    core, partner = power_of_two(comm)
    bounds = piece_bounds(sum(c.size for c in chunks), comm.size, [c.size for c in chunks])
    flat = np.empty_like(chunks[0], shape=(bounds[-1][1],))
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
    """Recursive doubling on 2^k ranks: before, rank r has its part of `flat`; afterwards all."""
    r, have = core.rank, 1
    while have < core.size:
        mine, theirs = (slice(bounds[first][0], bounds[first + have - 1][1])
                        for first in (r & -have, (r ^ have) & -have))
        core.sendrecv(flat[mine], r ^ have, flat[theirs], r ^ have)
        have *= 2


def bruck(comm: Communicator, chunks: list[Array]) -> None:
    """⌈log₂ p⌉ rounds, n(p-1)/p bytes, for any p: pass on all you have to ever farther ranks.

        round 0   r ─(r)▶ r-1                   rank r has chunks r, r+1,
        round 1   r ─(r, r+1)▶ r-2              then r … r+3; the last round sends what is missing

    Bruck, Ho, Kipnis, Upfal & Weathersby 1997.
    """
    p, r = comm.size, comm.rank
    order = [chunks[(r + i) % p] for i in range(p)]         # as they come in: r, r+1, …
    bounds = piece_bounds(sum(c.size for c in order), p, [c.size for c in order])
    flat = np.empty_like(order[0], shape=(bounds[-1][1],))
    flat[slice(*bounds[0])] = order[0].reshape(order[0].size)
    have = 1
    while have < p:
        more = min(have, p - have)
        coming = flat[bounds[have][0]:bounds[have + more - 1][1]]
        comm.sendrecv(flat[:bounds[more - 1][1]], (r - have) % p, coming, (r + have) % p)
        have += more
    for chunk, (start, stop) in zip(order[1:], bounds[1:]):
        chunk[...] = flat[start:stop].reshape(chunk.shape)
