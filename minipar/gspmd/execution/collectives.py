"""The collectives of a local program, each a conjugate pair on padded pieces.

    all-gather      gather the pieces of all ranks, strip the padding, restore the natural order
    slice           order, pad to equal pieces, take this rank's

The algorithms are the ring and exchanges in pairs.  With them every rank sends as many bytes as the
plan says, for any number of ranks.

A dimension of sections has an order of its own: [q | k | v] is cut as q₀ k₀ v₀ | q₁ k₁ v₁.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather, all_to_all, reduce_scatter
from ...parallel.conjugate import conjugate, copy_to, reduce_from
from ..partitioning.program import Local
from .padding import Reorder, along, by_piece, pad_to, strip_to

Run = Callable[[Tensor], Tensor]


def split(comm: Communicator, array: Array, dim: int) -> Array:
    """This rank's piece of `array`, cut equally along `dim`."""
    length = array.shape[dim] // comm.size
    return array[along(dim, slice(comm.rank * length, (comm.rank + 1) * length))]


def exchange_back(comm: Communicator, array: Array, split_dim: int, concat_dim: int) -> Array:
    """The inverse of an all-to-all: every piece returns to its rank."""
    return all_to_all(comm, array, concat_dim, split_dim, "pairwise")


def passed_on(comm: Communicator, array: Array, dest: int, source: int) -> Array:
    """Send this rank's piece to `dest`; return that of `source`, of the same shape.

    Both may be this rank itself.
    """
    out = np.empty_like(array, order="C")
    comm.sendrecv(np.ascontiguousarray(array), dest, out, source)
    return out


def passed_back(comm: Communicator, array: Array, dest: int, source: int) -> Array:
    """The inverse of `passed_on`: each piece goes back to the rank from which it came."""
    return passed_on(comm, array, source, dest)


gather = partial(all_gather, algorithm="ring")
sum_and_split = partial(reduce_scatter, algorithm="ring")
ScatterTo, GatherFrom = conjugate(split, gather, "ScatterTo", "GatherFrom")
AllGather, ReduceScatter = conjugate(gather, sum_and_split, "AllGather", "ReduceScatter")
AllToAll, _ = conjugate(partial(all_to_all, algorithm="pairwise"), exchange_back, "AllToAll")
Permute, _ = conjugate(passed_on, passed_back, "Permute")


class PieceExchange(NamedTuple):
    """A collective over `comm` along `dim`, with a rank's piece before and after it.

    An all-to-all gathers along `dim` and cuts along `to`.
    """

    comm: Communicator
    dim: int
    to: int
    before: Local
    after: Local

    def gathered(self, gather: type[Function]) -> Run:
        """All pieces along `dim`."""
        length = self.after.shape[self.dim]
        return self.restore_after(lambda x: strip_to(
            gather.apply(x, comm=self.comm, dim=self.dim), self.dim, length))

    def cut(self, scatter: type[Function]) -> Run:
        """This rank's piece along `dim`."""
        length = self.comm.size * self.after.shape[self.dim]
        return self.reorder_before(self.dim, lambda x: scatter.apply(
            pad_to(x, self.dim, length), comm=self.comm, dim=self.dim))

    def exchanged(self) -> Run:
        """All pieces along `dim`, this rank's along `to`."""
        padded, length = self.comm.size * self.after.shape[self.to], self.after.shape[self.dim]
        return self.reorder_before(self.to, self.restore_after(lambda x: strip_to(
            AllToAll.apply(
                pad_to(x, self.to, padded), comm=self.comm, split_dim=self.to, concat_dim=self.dim),
            self.dim, length)))

    def restore_after(self, run: Run) -> Run:
        """`run`, and then the natural order, if `dim` has sections that were cut."""
        order = self.order(self.before, self.dim)
        return run if order is None else lambda x: Reorder.apply(run(x), order=np.argsort(order))

    def reorder_before(self, dim: int, run: Run) -> Run:
        """The order in which sections are cut, if `dim` has some, and then `run`."""
        order = self.order(self.after, dim)
        return run if order is None else lambda x: run(Reorder.apply(x, order=order))

    def order(self, local: Local, dim: int) -> np.ndarray | None:
        """The order of a dimension whose sections are cut over `comm`; None if it has none."""
        is_last = dim == len(local.value.shape) - 1
        return sections_order(local, self.comm.size) if is_last else None


# All ranks use the result of a "gather" alike, so its gradient is sliced.  They use that of an
# "all-gather" for different data, so its gradient is reduce-scattered.
COLLECTIVES: dict[str, Callable[[PieceExchange], Run]] = {
    "copy": lambda e: lambda x: copy_to(x, e.comm),
    "all-reduce": lambda e: lambda x: reduce_from(x, e.comm),
    "all-gather": lambda e: e.gathered(AllGather),
    "gather": lambda e: e.gathered(GatherFrom),
    "slice": lambda e: e.cut(ScatterTo),
    "reduce-scatter": lambda e: e.cut(ReduceScatter),
    "all-to-all": lambda e: e.exchanged(),
}


def sections_order(local: Local, p: int) -> np.ndarray | None:
    """The order in which a value's sections are cut into p pieces; None if it has none."""
    sections = local.value.sections
    if not sections or p == 1 or any(n % p for n in sections):
        return None
    return by_piece(sections, p)
