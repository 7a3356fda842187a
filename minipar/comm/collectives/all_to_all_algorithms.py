"""A further way to all-to-all: fewer rounds, more bytes, for short arrays and many ranks."""

from collections.abc import Sequence
from math import prod

import numpy as np

from ...backend import Array
from ..chunks import piece_bounds
from ..communicator import Communicator


def bruck(comm: Communicator, outgoing: list[Array], incoming: list[Array],
          counts: Sequence[Sequence[int]] | None = None) -> None:
    """⌈log₂ p⌉ rounds of about n/2 bytes: a piece with j ranks to go jumps 2^k for each bit k of j.

        j = 5 = 101₂     r ─▶ r+1 ─▶ r+1 ─▶ r+5     in round k all pieces with bit k travel in
                         round 0     1      2       one message

    Bruck, Ho, Kipnis, Upfal & Weathersby 1997.
    """
    p, r = comm.size, comm.rank
    row = prod(outgoing[r].shape[1:])

    def size(source: int, distance: int) -> int:
        """Elements of the piece that started at `source` with `distance` ranks to go."""
        if counts is None:
            return outgoing[r].size
        return counts[source % p][(source + distance) % p] * row

    pieces = [outgoing[(r + j) % p] for j in range(p)]      # by how far they have to go in all
    pieces = [piece.reshape(piece.size) for piece in pieces]
    jump = 1
    while jump < p:
        moving = [j for j in range(p) if j & jump]
        # What comes here now with j ranks to go in all has made the jumps of j's lower bits.
        sizes = [size(r - jump - j % jump, j) for j in moving]
        arrived = np.empty_like(pieces[0], shape=(sum(sizes),))
        comm.sendrecv(np.concatenate([pieces[j] for j in moving]), (r + jump) % p,
                      arrived, (r - jump) % p)
        for j, bounds in zip(moving, piece_bounds(sum(sizes), len(sizes), sizes)):
            pieces[j] = arrived[slice(*bounds)]
        jump *= 2
    for j in range(p):
        source = incoming[(r - j) % p]
        source[...] = pieces[j].reshape(source.shape)
