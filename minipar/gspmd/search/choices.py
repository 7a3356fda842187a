"""The alternatives of a search: how each operation may be cut, and each input.

    linear (b, t, i, o) on a mesh dp, tp      b: dp, o: tp         result (dp, ·, tp)
                                              b: dp, i: tp         partial sums over tp: all-reduced
                                                                   to (dp, ·, ·), or reduce-
                                                                   scattered to (dp, tp, ·), …
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...autograd.ops.matmul import Linear
from ..graph import Operation, Value
from ..partitioning.conversion import conversion
from ..partitioning.cuts import result_layout
from ..partitioning.program import Cut, Local
from ..partitioning.reshard import ShardedLayout
from ..rules.rule import FactorRule, to_dims
from ..spec import Dims, all_axes, assignments, num_pieces
from .machine import Machine, instruction_seconds, is_view, num_flops


class Use(NamedTuple):
    """The layout in which an operation needs an operand, and the axes along which ranks differ."""

    dims: Dims
    varies: frozenset[str]


class OperationChoice(NamedTuple):
    """One way to cut an operation; `home` is the layout that its result then has.

    `seconds` count its arithmetic and the sum of its partial results; `num_bytes` are kept for
    backward.
    """

    cut: Cut
    uses: tuple[Use, ...]
    home: Dims
    seconds: float
    num_bytes: float


def cuts(operation: Operation, rule: FactorRule, mesh: Mapping[str, int]) -> Iterator[Cut]:
    """All ways to give each axis to a factor, or to none; the axes must divide the factors."""
    for cut in assignments(mesh, [[None, *rule.factors]] * len(mesh)):
        if all(name not in rule.whole and rule.sizes[name] % num_pieces(axes, mesh) == 0
               for name, axes in cut.items()) and rule.fits(cut, mesh):
            yield cut


def layouts(value: Value, mesh: Mapping[str, int]) -> Iterator[Dims]:
    """All ways to cut an input: each axis cuts a dimension that it divides, or no dimension."""
    places = range(len(value.shape))
    for cut in assignments(mesh, [[None, *places]] * len(mesh)):
        dims = tuple([cut.get(dim, ()) for dim in places])
        if all(n % num_pieces(axes, mesh) == 0 for n, axes in zip(value.shape, dims)):
            yield dims


def choices_of(operation: Operation, rule: FactorRule, mesh: Mapping[str, int],
               machine: Machine) -> list[OperationChoice]:
    """The alternatives of one operation; partial sums give one for each layout of the sum."""
    found = []
    for cut in cuts(operation, rule, mesh):
        axes = all_axes(cut.values())
        computing = num_flops(operation) / num_pieces(axes, mesh) / machine.flops
        varies = frozenset(axes)
        uses = [Use(to_dims(cut, factors or (), rule.sizes, mesh), varies)
                for factors in rule.operands]
        made = result_layout(operation, rule, cut, mesh)
        for home in homes(operation.result, made, mesh):
            if made.partial and operation.function is Linear:    # bias added at home
                uses[2] = Use(home[-1:], frozenset(all_axes(home)))
            seconds = computing + sum(conversion_parts(
                operation.result, made, Use(home, frozenset()), machine, mesh).values())
            num_bytes = 0.0 if is_view(operation) else local_bytes(operation.result, home, mesh)
            found.append(OperationChoice(cut, tuple(uses), home, seconds, num_bytes))
    return found


def homes(value: Value, made: ShardedLayout, mesh: Mapping[str, int]) -> Iterator[Dims]:
    """The layouts of a result: as made; and, for partial sums, cut along one dimension more."""
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


def conversion_parts(value: Value, start: ShardedLayout, use: Use, machine: Machine,
                     mesh: Mapping[str, int]) -> dict[tuple, float]:
    """The seconds, forward and backward, of the two parts of a conversion: a copy, and the rest.

    Parts with equal keys are made once for all users of the value.
    """
    moves = conversion(Local(value, start, mesh), use.dims, set(use.varies))
    num_copies = int(bool(moves) and moves[0].kind == "copy")
    found = {}
    for part, goal in ((moves[:num_copies], None), (moves[num_copies:], use.dims)):
        key = (start, goal, tuple([(each.kind, each.axes) for each in moves[:num_copies] + part]))
        seconds = sum(instruction_seconds(each, machine) for each in part)
        if seconds:
            found[key] = seconds
    return found
