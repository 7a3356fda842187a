"""All-to-all: rank r's chunk number i becomes rank i's chunk number r, a transpose over ranks.

    before   rank 0: a0 a1 a2    rank 1: b0 b1 b2    rank 2: c0 c1 c2
    after    rank 0: a0 b0 c0    rank 1: a1 b1 c1    rank 2: a2 b2 c2

Chunks may differ in length, by a table that all ranks know (`counts`).
"""

from collections.abc import Sequence
from math import prod

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
from ..errors import check_axis


def pairwise(comm: Communicator, outgoing: list[Array], incoming: list[Array],
             counts: Sequence[Sequence[int]] | None = None) -> None:
    """p - 1 rounds, n(p-1)/p bytes: in round k rank r sends to r + k and receives from r - k.

    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    p, r = comm.size, comm.rank
    incoming[r][...] = outgoing[r]
    for k in range(1, p):
        comm.sendrecv(outgoing[(r + k) % p], (r + k) % p, incoming[(r - k) % p], (r - k) % p)


def all_to_all(comm: Communicator, array: Array, split_dim: int = 0, concat_dim: int = 0,
               algorithm: str = "auto", counts: Sequence[Sequence[int]] | None = None,
               out: Array | None = None) -> Array:
    """Collective.  The pieces that all ranks send to this one, joined along `concat_dim`.

    `array` is cut along `split_dim`, and piece i goes to rank i.  Rank i sends rank j a piece of
    length `counts[i][j]` (a table equal on all ranks).  Without `counts`, all pieces are equal, and
    p must divide the axis.  The result is written into `out`, if given.  Raises ValueError if the
    lengths do not add up to the axis `split_dim`.
    """
    p, r, lines = comm.size, comm.rank, axis_first(array, split_dim)
    check_axis(array, concat_dim, "concat_dim")
    length = lines.shape[0]
    if counts is None and length % p:
        raise ValueError(f"axis {split_dim} of length {length} does not divide among {p} ranks")
    if counts is not None and [np.size(row) for row in counts] != [p] * p:
        raise ValueError(f"counts has {len(counts)} rows, or one of another length: give {p} rows "
                         f"of {p}, what each rank sends each")
    counts = None if counts is None else [[int(n) for n in row] for row in counts]
    cuts = piece_bounds(length, p, None if counts is None else counts[r])
    outgoing = [lines[start:stop] for start, stop in cuts]
    lengths = [length // p] * p if counts is None else [row[r] for row in counts]
    incoming = [np.empty((n, *lines.shape[1:]), lines.dtype, like=lines) for n in lengths]
    arriving = [np.moveaxis(piece, 0, split_dim) for piece in incoming]
    check_out(out, array, with_length(arriving[0].shape, concat_dim,
                                      sum(piece.shape[concat_dim] for piece in arriving)))
    exchange = find_algorithm(comm, "all_to_all", algorithm,
                              mean_bytes(p, outgoing, counts))
    with comm.collective("all_to_all", array, None if counts is None else split_dim,
                         split_dim=split_dim % array.ndim, concat_dim=concat_dim % array.ndim,
                         counts=counts, algorithm=algorithm):
        exchange(comm, outgoing, incoming, counts)
    return deliver(joined(arriving, concat_dim), out)


def mean_bytes(p: int, outgoing: list[Array], counts: Sequence[Sequence[int]] | None) -> int:
    """Bytes that a rank gives on average, its own piece included; the same number on all ranks."""
    if counts is None:
        return outgoing[0].nbytes * p
    return sum(map(sum, counts)) * outgoing[0].itemsize * prod(outgoing[0].shape[1:]) // p


def bruck(comm: Communicator, outgoing: list[Array], incoming: list[Array],
          counts: Sequence[Sequence[int]] | None = None) -> None:
    """⌈log₂ p⌉ rounds of about n/2 bytes: a piece for the j-th next rank jumps 2^k per bit k of j.

        j = 5 = 101₂     r ─▶ r+1 ─▶ r+1 ─▶ r+5     in round k all pieces with bit k travel in
                         round 0     1      2       one message

    Bruck, Ho, Kipnis, Upfal & Weathersby 1997.
    """
    p, r = comm.size, comm.rank
    row = prod(outgoing[r].shape[1:])

    def size(source: int, distance: int) -> int:
        """Elements of the piece that `source` sends to the rank `distance` further on."""
        if counts is None:
            return outgoing[r].size
        return counts[source % p][(source + distance) % p] * row

    pieces = [outgoing[(r + j) % p] for j in range(p)]      # by their distance
    pieces = [piece.reshape(piece.size) for piece in pieces]
    jump = 1
    while jump < p:
        moving = [j for j in range(p) if j & jump]
        # A piece of distance j that arrives now has already made the jumps of j's lower bits.
        sizes = [size(r - jump - j % jump, j) for j in moving]
        arrived = np.empty((sum(sizes),), pieces[0].dtype, like=pieces[0])
        comm.sendrecv(joined([pieces[j] for j in moving]), (r + jump) % p,
                      arrived, (r - jump) % p)
        for j, bounds in zip(moving, piece_bounds(sum(sizes), len(sizes), sizes)):
            pieces[j] = arrived[slice(*bounds)]
        jump *= 2
    for j in range(p):
        place = incoming[(r - j) % p]
        place[...] = pieces[j].reshape(place.shape)
