"""A slice of a dimension that stays cut: x[2:10] of 16 rows on 4 ranks.

    rank        0           1           2           3
    has rows    0 1 2 3     4 5 6 7     8 9 10 11   12 13 14 15
    wants       2 3         4 5         6 7         8 9             rank 2 gets 6 7 from rank 1, …

Each row goes from the rank that has it to the one that wants it; if that is the same rank, it does
not move.
"""

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...parallel.conjugate import conjugate
from ..partitioning.overlaps import overlaps
from .padding import along, zeros_of


def shifted(comm: Communicator, x: Array, dim: int, length: int, start: int, stop: int) -> Array:
    """This rank's piece of x[start:stop] along a dimension of `length` that is cut over `comm`."""
    y = zeros_of(x, dim, num_rows(stop - start, comm))
    move(comm, x, y, dim, (length, start, stop), back=False)
    return y


def shifted_back(comm: Communicator, g: Array, dim: int, length: int, start: int,
                 stop: int) -> Array:
    """The gradient of x: each row goes back to the rank from which it came."""
    d = zeros_of(g, dim, num_rows(length, comm))
    move(comm, g, d, dim, (length, start, stop), back=True)
    return d


def num_rows(length: int, comm: Communicator) -> int:
    """The number of rows of this rank's piece of `length` rows; the last ranks may have fewer."""
    each = -(-length // comm.size)
    return max(0, min(each, length - comm.rank * each))


ShiftedSlice, _ = conjugate(shifted, shifted_back, "ShiftedSlice")


def move(comm: Communicator, source: Array, target: Array, dim: int,
         places: tuple[int, int, int], back: bool) -> None:
    """Fill `target` with the rows of all ranks' `source` that this rank wants.

    With `back`, `source` has the rows that its rank wanted before, and each goes back to its owner.
    """
    length, start, stop = places
    has, wants = -(-length // comm.size), -(-(stop - start) // comm.size)
    requests, arriving = [], []
    for each in overlaps(length, start, stop, comm.size):
        at_owner = slice(each.start - each.owner * has, each.stop - each.owner * has)
        at_taker = slice(each.start - start - each.taker * wants,
                         each.stop - start - each.taker * wants)
        giver, getter = (each.taker, each.owner) if back else (each.owner, each.taker)
        here, there = (at_taker, at_owner) if back else (at_owner, at_taker)
        if giver == getter == comm.rank:
            target[along(dim, there)] = source[along(dim, here)]
        elif giver == comm.rank:
            requests.append(comm.isend(np.ascontiguousarray(source[along(dim, here)]), getter))
        elif getter == comm.rank:
            out = np.empty_like(target[along(dim, there)], order="C")
            requests.append(comm.irecv(out, giver))
            arriving.append((there, out))
    for request in requests:
        request.wait()
    for there, out in arriving:
        target[along(dim, there)] = out
