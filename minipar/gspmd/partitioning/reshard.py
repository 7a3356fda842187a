"""Resharding: the cheapest collectives from one way of cutting an array to another.

    from → to                              collective         bytes that a rank sends, n local bytes
    cut on a → whole                       all-gather         (p-1) n
    whole → cut                            local slice        0
    cut on dimension i → on dimension j    all-to-all         n (p-1)/p
    partial sums → whole                   all-reduce         2 n (p-1)/p
    partial sums → cut                     reduce-scatter     n (p-1)/p
    cut by (a, b) → by (b, a)              permute            n

A shortest path through these moves (Dijkstra 1959) finds the sequence.  So a sum that is cut
afterwards becomes a reduce-scatter, with half the bytes of an all-reduce and a slice.  Only
padding, or a dimension of sections such as [q | k | v], can make that dearer or impossible.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..graph import Value
from ..spec import Axes, Dims, all_axes, local_shape, nests, num_pieces


class ShardedLayout(NamedTuple):
    """The layout of an array: the axes of each dimension, and the axes of partial sums."""

    dims: Dims
    partial: frozenset[str] = frozenset()


class ShardMove(NamedTuple):
    """One collective, or slice, along `axes`, which changes the cut of dimension `dim`.

    An all-to-all cuts dimension `to` instead of `dim`; an all-reduce changes no cut (-1).  A rank
    sends `num_bytes`.
    """

    kind: str
    axes: Axes
    dim: int
    to: int
    num_bytes: float
    after: ShardedLayout


class ArraySizes(NamedTuple):
    """The sizes on which the cost of a move depends, beside the layout."""

    shape: tuple[int, ...]
    itemsize: int
    cut_at_once: bool = False       # the last dimension has sections: cut it by all axes or none

    @classmethod
    def of(cls, value: Value) -> "ArraySizes":
        """The sizes of a value of the graph."""
        return cls(value.shape, value.dtype.itemsize, bool(value.sections))


def cheapest(array: ArraySizes, start: ShardedLayout, goal: Dims,
             mesh: Mapping[str, int]) -> list[ShardMove]:
    """The moves of fewest bytes, and of these the fewest moves, from `start` to `goal`."""
    return list(_cheapest(array, start, goal, tuple(mesh.items())))


@lru_cache(maxsize=100_000)
def _cheapest(array: ArraySizes, start: ShardedLayout, goal: Dims,
              mesh_items: tuple) -> tuple[ShardMove, ...]:
    mesh, target = dict(mesh_items), ShardedLayout(goal)
    return shortest_path(start, target, lambda layout: moves(array, layout, target, mesh))


def shortest_path(start: ShardedLayout, target: ShardedLayout,
                  next_moves: Callable[[ShardedLayout], Iterable[ShardMove]]
                  ) -> tuple[ShardMove, ...]:
    """The moves of fewest bytes, and of these the fewest moves, from `start` to `target`.

    Raises ValueError if there is no way.
    """
    counter = itertools.count()         # so that layouts are never compared
    queue: list[tuple] = [((0.0, 0), next(counter), start, ())]
    done: set[ShardedLayout] = set()
    while queue:
        (num_bytes, _), _, layout, path = heapq.heappop(queue)
        if layout == target:
            return path
        if layout in done:
            continue
        done.add(layout)
        for move in next_moves(layout):
            if move.after not in done:
                heapq.heappush(queue, ((num_bytes + move.num_bytes, len(path) + 1), next(counter),
                                       move.after, (*path, move)))
    raise ValueError(f"no way from {start} to {target}")


def moves(array: ArraySizes, layout: ShardedLayout, target: ShardedLayout,
          mesh: Mapping[str, int]) -> Iterator[ShardMove]:
    """All moves that could come next."""
    yield from collectives(array, layout, tuple(mesh.items()))
    yield from slices(PathNode(array, layout, mesh), target.dims)


@lru_cache(maxsize=100_000)
def collectives(array: ArraySizes, layout: ShardedLayout, mesh_items: tuple) -> tuple[ShardMove,
                ...]:
    """The moves that send messages, whatever the target."""
    here = PathNode(array, layout, dict(mesh_items))
    return tuple([move for kind in (all_gathers, permutes, all_to_alls, all_reduces,
                                    reduce_scatters) for move in kind(here)])


class PathNode:
    """A layout on the path, with the numbers that all moves from it use."""

    def __init__(self, array: ArraySizes, layout: ShardedLayout, mesh: Mapping[str, int]):
        self.array, self.dims, self.partial, self.mesh = array, layout.dims, layout.partial, mesh
        self.pieces = local_shape(array.shape, layout.dims, mesh)
        self.num_bytes = float(math.prod(self.pieces) * array.itemsize)

    def with_axes(self, dim: int, axes: Axes) -> Dims:
        """The dimensions, with one of them cut by `axes`."""
        return (*self.dims[:dim], axes, *self.dims[dim + 1:])

    def at_once(self, dim: int) -> bool:
        """True for a dimension of sections, which is cut by all its axes in one move."""
        return self.array.cut_at_once and dim == len(self.dims) - 1

    def nests(self, dim: int, outer: Axes, axis: str) -> bool:
        """True if cutting the pieces of `outer` by `axis` gives the pieces of (*outer, axis)."""
        return nests(self.array.shape[dim], outer, axis, self.mesh)

    def can_cut(self, dim: int, axis: str) -> bool:
        """True if `axis` may come behind the axes that cut a dimension."""
        return self.nests(dim, self.dims[dim], axis) and not (self.at_once(dim) and self.dims[dim])

    def padded(self, dim: int, p: int) -> float:
        """The local bytes, with a dimension padded to a multiple of p."""
        length = self.pieces[dim]
        return self.num_bytes / max(1, length) * (-(-length // p) * p)


def all_gathers(here: PathNode) -> Iterator[ShardMove]:
    """Moves after which the last axes of a dimension, or all of them, cut it no longer."""
    for dim, axes in enumerate(here.dims):
        for keep in range(1 if here.at_once(dim) and axes else len(axes)):
            if keep == 0 or all(here.nests(dim, axes[:j], axes[j])
                                for j in range(keep, len(axes))):
                p = num_pieces(axes[keep:], here.mesh)
                yield ShardMove("all-gather", axes[keep:], dim, -1, (p - 1) * here.num_bytes,
                                ShardedLayout(here.with_axes(dim, axes[:keep]), here.partial))


def permutes(here: PathNode) -> Iterator[ShardMove]:
    """Moves that change the order of the axes of a dimension: pieces change their ranks."""
    for dim, axes in enumerate(here.dims):
        if len(axes) > 1 and not here.at_once(dim):
            for order in itertools.permutations(axes):
                if order != axes:
                    yield ShardMove("permute", order, dim, -1, here.num_bytes,
                                    ShardedLayout(here.with_axes(dim, order), here.partial))


def all_to_alls(here: PathNode) -> Iterator[ShardMove]:
    """Moves after which the last axis of a dimension cuts another dimension instead."""
    for dim, axes in enumerate(here.dims):
        if not axes or len(axes) > 1 and (here.at_once(dim)
                                          or not here.nests(dim, axes[:-1], axes[-1])):
            continue
        p = here.mesh[axes[-1]]
        for to, others in enumerate(here.dims):
            if to != dim and here.can_cut(to, axes[-1]):
                dims = list(here.with_axes(dim, axes[:-1]))
                dims[to] = (*others, axes[-1])
                yield ShardMove("all-to-all", axes[-1:], dim, to, here.padded(to, p) * (p - 1) / p,
                                ShardedLayout(tuple(dims), here.partial))


def slices(here: PathNode, target: Dims) -> Iterator[ShardMove]:
    """Moves that cut a dimension by an axis of the target that is not in use.

    Other slices cut a whole dimension at once, by all axes that it has in the target.
    """
    used = {*all_axes(here.dims), *here.partial}
    for dim, axes in enumerate(here.dims):
        wanted = target[dim]
        if not axes and wanted and not used & set(wanted) and (
                here.at_once(dim) or len(wanted) > 1):
            yield ShardMove("slice", wanted, dim, -1, 0.0,
                            ShardedLayout(here.with_axes(dim, wanted), here.partial))
    for axis in sorted({*all_axes(target)} - used):
        for dim, axes in enumerate(here.dims):
            if here.can_cut(dim, axis):
                yield ShardMove("slice", (axis,), dim, -1, 0.0,
                                ShardedLayout(here.with_axes(dim, (*axes, axis)), here.partial))


def all_reduces(here: PathNode) -> Iterator[ShardMove]:
    """Moves that sum partial sums along some axes, on all ranks."""
    partial = [axis for axis in here.mesh if axis in here.partial]
    for size in range(1, len(partial) + 1):
        for axes in itertools.combinations(partial, size):
            p = num_pieces(axes, here.mesh)
            yield ShardMove("all-reduce", axes, -1, -1, 2 * here.num_bytes * (p - 1) / p,
                            ShardedLayout(here.dims, here.partial - set(axes)))


def reduce_scatters(here: PathNode) -> Iterator[ShardMove]:
    """Moves that sum partial sums along an axis, each rank keeping its piece of a dimension."""
    for axis in sorted(here.partial):
        p = here.mesh[axis]
        for dim, axes in enumerate(here.dims):
            if here.can_cut(dim, axis):
                yield ShardMove("reduce-scatter", (axis,), dim, -1,
                                here.padded(dim, p) * (p - 1) / p,
                                ShardedLayout(here.with_axes(dim, (*axes, axis)),
                                              here.partial - {axis}))
