"""Resharding: the cheapest collectives from one way of cutting an array to another.

    from → to                              collective         bytes that a rank sends, n local bytes
    cut on a → whole                       all-gather         (p-1) n
    whole → cut                            local slice        0
    cut on dimension i → on dimension j    all-to-all         n (p-1)/p
    partial sums → whole                   all-reduce         2 n (p-1)/p
    partial sums → cut                     reduce-scatter     n (p-1)/p
    cut by (a, b) → by (b, a)              permute            n

A shortest path through these moves (Dijkstra 1959) finds the sequence.  So a sum that is cut
afterwards becomes a reduce-scatter, never an all-reduce and a slice.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..graph import Value
from ..spec import Axes, Dims, local_shape, nests, num_pieces


class Layout(NamedTuple):
    """How an array lies on the ranks: the axes of each dimension, and those of partial sums."""

    dims: Dims
    partial: frozenset[str] = frozenset()


class Move(NamedTuple):
    """One collective, over `axes`: from `dim`, to `to` where an all-to-all goes.

    `num_bytes` are those that a rank sends.
    """

    kind: str
    axes: Axes
    dim: int
    to: int
    num_bytes: float
    after: Layout


class Array(NamedTuple):
    """What the cost of a move depends on, beside the layout."""

    shape: tuple[int, ...]
    itemsize: int
    cut_at_once: bool = False       # the last dimension has sections: cut it by all axes or none

    @classmethod
    def of(cls, value: Value) -> "Array":
        """That of a value of the graph."""
        return cls(value.shape, value.dtype.itemsize, bool(value.sections))


def cheapest(array: Array, start: Layout, goal: Dims, mesh: Mapping[str, int]) -> list[Move]:
    """The moves of fewest bytes, then fewest moves, from `start` to `goal`."""
    return list(_cheapest(array, start, goal, tuple(mesh.items())))


@lru_cache(maxsize=100_000)
def _cheapest(array: Array, start: Layout, goal: Dims, mesh_items: tuple) -> tuple[Move, ...]:
    mesh, target = dict(mesh_items), Layout(goal)
    return shortest_path(start, target, lambda layout: moves(array, layout, target, mesh))


def shortest_path(start: Layout, target: Layout,
                  next_moves: Callable[[Layout], Iterable[Move]]) -> tuple[Move, ...]:
    """The moves of fewest bytes, and of these the fewest moves, from `start` to `target`.

    Raises ValueError if there is no way.
    """
    counter = itertools.count()         # so that layouts are never compared
    queue: list[tuple] = [((0.0, 0), next(counter), start, ())]
    done: set[Layout] = set()
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


def moves(array: Array, layout: Layout, target: Layout, mesh: Mapping[str, int]) -> Iterator[Move]:
    """All collectives that could come next."""
    pieces = local_shape(array.shape, layout.dims, mesh)
    n = float(array.itemsize)
    for length in pieces:
        n *= length

    def cut(dim: int, axes: Axes, dims: Dims = layout.dims) -> Dims:
        return (*dims[:dim], axes, *dims[dim + 1:])

    def can_cut(dim: int, axis: str) -> bool:
        outer = layout.dims[dim]
        at_once = array.cut_at_once and dim == len(array.shape) - 1
        return nests(array.shape[dim], outer, axis, mesh) and not (at_once and outer)

    def padded(dim: int, p: int) -> float:
        """The local bytes, with this dimension padded to a multiple of p."""
        return n / max(1, pieces[dim]) * (-(-pieces[dim] // p) * p)

    for dim, axes in enumerate(layout.dims):
        at_once = array.cut_at_once and dim == len(array.shape) - 1
        for k in range(0 if at_once else len(axes)):
            if k == 0 or all(nests(array.shape[dim], axes[:j], axes[j], mesh)
                             for j in range(k, len(axes))):
                p = num_pieces(axes[k:], mesh)
                yield Move("all-gather", axes[k:], dim, -1, (p - 1) * n,
                           Layout(cut(dim, axes[:k]), layout.partial))
        if at_once and axes:
            yield Move("all-gather", axes, dim, -1, (num_pieces(axes, mesh) - 1) * n,
                       Layout(cut(dim, ()), layout.partial))
        if not axes and (at_once or len(target.dims[dim]) > 1):
            used = {a for each in layout.dims for a in each} | layout.partial
            if target.dims[dim] and not used & set(target.dims[dim]):
                yield Move("slice", target.dims[dim], dim, -1, 0.0,
                           Layout(cut(dim, target.dims[dim]), layout.partial))
        if len(axes) > 1 and not at_once:
            for order in itertools.permutations(axes):
                if order != axes:
                    yield Move("permute", order, dim, -1, n, Layout(cut(dim, order),
                                                                    layout.partial))
        if axes and (not at_once or len(axes) == 1) and (
                len(axes) == 1 or nests(array.shape[dim], axes[:-1], axes[-1], mesh)):
            axis, p = axes[-1], mesh[axes[-1]]
            for to, others in enumerate(layout.dims):
                if to != dim and can_cut(to, axis):
                    yield Move("all-to-all", (axis,), dim, to, padded(to, p) * (p - 1) / p, Layout(
                        cut(to, (*others, axis), cut(dim, axes[:-1])), layout.partial))
    free = {axis for axes in target.dims for axis in axes} - layout.partial - {
        axis for axes in layout.dims for axis in axes}
    for axis in sorted(free):
        for dim, axes in enumerate(layout.dims):
            if can_cut(dim, axis):
                yield Move("slice", (axis,), dim, -1, 0.0,
                           Layout(cut(dim, (*axes, axis)), layout.partial))
    for size in range(1, len(layout.partial) + 1):
        for axes in itertools.combinations([a for a in mesh if a in layout.partial], size):
            p = num_pieces(axes, mesh)
            yield Move("all-reduce", axes, -1, -1, 2 * n * (p - 1) / p,
                       Layout(layout.dims, layout.partial - set(axes)))
    for axis in sorted(layout.partial):
        for dim, axes in enumerate(layout.dims):
            if can_cut(dim, axis):
                p = mesh[axis]
                yield Move("reduce-scatter", (axis,), dim, -1, padded(dim, p) * (p - 1) / p, Layout(
                    cut(dim, (*axes, axis)), layout.partial - {axis}))
