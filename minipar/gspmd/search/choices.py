"""The alternatives of a search: how each operation may be cut, and each input.

    linear (b, t, i, o) on a mesh dp, tp      b: dp, o: tp         result (dp, ·, tp)
                                              b: dp, i: tp         partial sums over tp: all-reduced
                                                                   to (dp, ·, ·), or reduce-
                                                                   scattered to (dp, tp, ·), …
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..graph import Operation, Value
from ..partitioning.conversion import conversion
from ..partitioning.cuts import result_layout
from ..partitioning.program import Cut, Local
from ..partitioning.reshard import Layout
from ..rules.rule import FactorRule, fits, to_dims
from ..spec import Axes, Dims, num_pieces
from .machine import Machine, instruction_seconds, is_view, num_flops


class OperationChoice(NamedTuple):
    """An operation that is cut so, and where its result lies then.

    `needs` are the layouts of its operands, None for numbers.  `seconds` are those of its
    arithmetic and of the sum of its partial results; `num_bytes` are kept for backward.
    """

    cut: Cut
    needs: tuple[Dims | None, ...]
    home: Dims
    seconds: float
    num_bytes: float

    @property
    def varies(self) -> set[str]:
        """The axes along which ranks compute different things."""
        return {axis for axes in self.cut.values() for axis in axes}


def cuts(operation: Operation, rule: FactorRule, mesh: Mapping[str, int]) -> Iterator[Cut]:
    """All ways to give each axis to a factor that it divides, or to none."""
    for choice in itertools.product([None, *rule.factors], repeat=len(mesh)):
        cut: Cut = {}
        for axis, name in zip(mesh, choice):
            if name is not None:
                cut[name] = (*cut.get(name, ()), axis)
        if all(name not in rule.whole and rule.sizes[name] % num_pieces(axes, mesh) == 0
               for name, axes in cut.items()) and all(
                fits(cut, rule.of(i) or (), rule.sizes, mesh)
                for i in range(-1, len(rule.operands))):
            yield cut


def layouts(value: Value, mesh: Mapping[str, int]) -> Iterator[Dims]:
    """All ways to cut an input: each axis cuts a dimension that it divides, or none."""
    for choice in itertools.product([None, *range(len(value.shape))], repeat=len(mesh)):
        dims: list[Axes] = [()] * len(value.shape)
        for axis, dim in zip(mesh, choice):
            if dim is not None:
                dims[dim] = (*dims[dim], axis)
        if all(n % num_pieces(axes, mesh) == 0 for n, axes in zip(value.shape, dims)):
            yield tuple(dims)


def choices_of(operation: Operation, rule: FactorRule, mesh: Mapping[str, int],
               machine: Machine) -> list[OperationChoice]:
    """The alternatives of one operation; for one that sums, each place where the sum may lie."""
    found = []
    for cut in cuts(operation, rule, mesh):
        used = num_pieces(tuple([a for axes in cut.values() for a in axes]), mesh)
        computing = num_flops(operation) / used / machine.flops
        needs = tuple([None if rule.of(i) is None else
                       to_dims(cut, rule.of(i) or (), rule.sizes, mesh)
                       for i in range(len(rule.operands))])
        made = result_layout(operation, rule, cut, mesh)
        for home in homes(operation.result, made, mesh):
            seconds = computing + move_seconds(operation.result, made, home, set(), machine, mesh)
            num_bytes = 0.0 if is_view(operation) else local_bytes(operation.result, home, mesh)
            found.append(OperationChoice(cut, needs, home, seconds, num_bytes))
    return found


def homes(value: Value, made: Layout, mesh: Mapping[str, int]) -> Iterator[Dims]:
    """The layouts of a result: partial sums become whole, or are cut along a dimension."""
    yield made.dims
    for axis in sorted(made.partial):
        for dim, axes in enumerate(made.dims):
            if value.shape[dim] % num_pieces((*axes, axis), mesh) == 0 and not value.sections:
                yield (*made.dims[:dim], (*axes, axis), *made.dims[dim + 1:])


def local_bytes(value: Value, dims: Dims, mesh: Mapping[str, int]) -> float:
    """The bytes of a rank's piece."""
    size = float(value.dtype.itemsize)
    for length, axes in zip(value.shape, dims):
        size *= length / num_pieces(axes, mesh)
    return size


def move_seconds(value: Value, start: Layout, goal: Dims, varies: set[str], machine: Machine,
                 mesh: Mapping[str, int]) -> float:
    """The time from one layout to another for an operation that varies along some axes.

    Forward and backward: with the sum of gradients along axes where the value is whole.
    """
    return sum(instruction_seconds(each, machine) for each in
               conversion(Local(value, start, mesh), goal, varies))
