"""A slice of a dimension that stays cut: x[2:10] of 16 rows on 4 ranks.

    rank        0           1           2           3
    has rows    0 1 2 3     4 5 6 7     8 9 10 11   12 13 14 15
    wants       2 3         4 5         6 7         8 9             rank 2 gets 6 7 from rank 1, …

Each row goes from the rank that has it to the one that wants it; most need not move.
"""

import numpy as np

from ...autograd import Function
from ...backend import Array
from ...comm import Communicator
from ..partitioning.overlaps import overlaps
from .padding import along


class ShiftedSlice(Function):
    """x[start:stop] along a dimension of `length` that is cut over `comm`;  dx goes back."""

    metered = False

    @staticmethod
    def forward(ctx, x, comm, dim, length, start, stop):
        ctx.comm, ctx.dim, ctx.places = comm, dim, (length, start, stop)
        ctx.shape = x.shape
        wants = -(-(stop - start) // comm.size)
        wants = max(0, min(wants, stop - start - comm.rank * wants))    # the last ones want fewer
        y = np.zeros((*x.shape[:dim], wants, *x.shape[dim + 1:]), x.dtype, like=x)
        move(comm, x, y, dim, ctx.places, back=False)
        return y

    @staticmethod
    def backward(ctx, g):
        comm, dim, places, shape = ctx.comm, ctx.dim, ctx.places, ctx.shape

        def dx():
            d = np.zeros(shape, g.dtype, like=g)
            move(comm, g, d, dim, places, back=True)
            return d
        return [dx]


def move(comm: Communicator, source: Array, target: Array, dim: int,
         places: tuple[int, int, int], back: bool) -> None:
    """Fill `target` with the rows of `source` that overlap it, of all ranks; or back."""
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
