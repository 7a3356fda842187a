"""The cut of an operation: the mesh axes of each of its factors.

    y = x w     x (dp, ·) w (·, tp)     they agree: rows over dp, columns over tp, nothing moves
    y = x w     x (dp, ·) w (dp, ·)     they disagree: dp may cut rows, the inner dimension, or
                                        the columns, or nothing; what sends the fewest bytes wins
"""

from collections.abc import Callable, Iterator, Mapping

from ...autograd.ops.cross_entropy import CrossEntropy
from ..graph import Operation, Value
from ..propagate import Shardings
from ..rules.rule import FactorRule, flat_names, to_dims, to_factors
from ..spec import Axes, Dims, all_axes, assignments, num_pieces
from .program import Cut, Local
from .reshard import ArraySizes, ShardedLayout, cheapest


def summed(operation: Operation, rule: FactorRule) -> set[str]:
    """The contracted factors whose partial results must be summed outside the operation."""
    if rule.combine != "sum":
        return set()                        # a maximum over ranks is taken within the operation
    if operation.function is CrossEntropy:
        return rule.contracted - set(flat_names((rule.operands[0] or ())[-1:]))
    return rule.contracted


def can_cut(rule: FactorRule, name: str, axes: Axes, mesh: Mapping[str, int]) -> bool:
    """True if an operation can be computed with this factor in pieces.

    The axes must divide a factor that shares its dimension with others; a factor by itself is
    padded.
    """
    if name in rule.whole or rule.sizes[name] < 2:
        return False
    shared = any(name in parts and len(parts) > 1
                 for i in range(-1, len(rule.operands)) for parts in rule.of(i) or ())
    return not shared or rule.sizes[name] % num_pieces(axes, mesh) == 0


def result_layout(operation: Operation, rule: FactorRule, cut: Cut,
                  mesh: Mapping[str, int]) -> ShardedLayout:
    """The layout of the result of an operation with this cut."""
    partial = frozenset(axis for name in summed(operation, rule) for axis in cut.get(name, ()))
    return ShardedLayout(to_dims(cut, rule.result, rule.sizes, mesh), partial)


def num_bytes(value: Value, start: ShardedLayout, goal: Dims, mesh: Mapping[str, int]) -> float:
    """The bytes that a rank sends from one layout of a value to another."""
    return sum(move.num_bytes for move in cheapest(ArraySizes.of(value), start, goal, mesh))


class CutChoice:
    """The choice of a cut for one operation, whose operands have the layouts in `home`."""

    def __init__(self, operation: Operation, shardings: Shardings, home: Mapping[Value, Local],
                 goal: Callable[[Operation, ShardedLayout], Dims | None]):
        self.operation, self.shardings, self.home, self.goal = operation, shardings, home, goal
        self.rule, self.mesh = shardings.rules[operation], shardings.mesh

    def best(self) -> Cut:
        """The axes of each factor: the operands' axes, if they agree; else the cheapest.

        Of equally cheap cuts, one that uses more ranks wins, then one that sums over no factor.
        The names of the factors that are summed over decide the rest.
        """
        cuts = list(self.possible())
        if len(cuts) == 1:
            return cuts[0]
        sums = summed(self.operation, self.rule)
        return min(cuts, key=lambda cut: (
            self.cost(cut), -num_pieces(all_axes(cut.values()), self.mesh),
            sorted(sums & cut.keys())))

    def cost(self, cut: Cut) -> float:
        """The bytes that a rank sends around the operation if it is cut so."""
        total = 0.0
        for index, x in enumerate(self.operation.inputs):
            factors = self.rule.of(index)
            if isinstance(x, Value) and factors is not None:
                goal = to_dims(cut, factors, self.rule.sizes, self.mesh)
                total += num_bytes(x, self.home[x].layout, goal, self.mesh)
        made = result_layout(self.operation, self.rule, cut, self.mesh)
        after = self.goal(self.operation, made)
        return total if after is None else total + num_bytes(
            self.operation.result, made, after, self.mesh)

    def possible(self) -> Iterator[Cut]:
        """The ways to give the axes of operands and result to factors; {} if there is none.

        An axis goes to a factor if no other wants it, and the result (or, of a contracted factor,
        all operands) agree.
        """
        wanted = self.wanted()
        choices: list[list[str | None]] = []
        for axis, factors in wanted.items():
            fitting: list[str | None] = [name for name in factors if self.can_cut(name, (axis,))]
            if len(factors) != 1 or not fitting or not self.agrees(factors[0], axis):
                fitting += [name for name in self.rule.factors
                            if name not in fitting and self.can_cut(name, (axis,))]
                fitting.append(None)
            choices.append(fitting)
        found = False
        for cut in assignments(wanted, choices):
            if self.rule.fits(cut, self.mesh) and all(
                    self.can_cut(name, axes) for name, axes in cut.items()):
                found = True
                yield cut
        if not found:
            yield {}

    def wanted(self) -> dict[str, list[str]]:
        """For each axis, the factors that it cuts in operands, or else in the result."""
        wanted: dict[str, list[str]] = {}
        for index in (*range(len(self.operation.inputs)), -1):
            value = self.operation.result if index < 0 else self.operation.inputs[index]
            factors = self.rule.of(index)
            if not isinstance(value, Value) or factors is None:
                continue
            known = list(wanted) if index < 0 else []
            dims = self.shardings.of(value) if index < 0 else self.home[value].layout.dims
            by_factor, over = to_factors(dims, factors, self.rule.sizes, self.mesh)
            for name, axes in (*by_factor.items(), ("", over)):     # "": a place of no factor
                for axis in axes:
                    if axis not in known and name not in wanted.setdefault(axis, []):
                        wanted[axis].append(name)
        return wanted

    def agrees(self, name: str, axis: str) -> bool:
        """True if `axis` cuts this factor in the result, or a contracted factor in all operands."""
        values = [(self.shardings.of(self.operation.result), self.rule.result)]
        if name in self.rule.contracted:
            values = [(self.home[x].layout.dims, factors or ()) for x, factors in
                      zip(self.operation.inputs, self.rule.operands)
                      if isinstance(x, Value) and name in flat_names(factors)]
        return all(axis in to_factors(dims, factors, self.rule.sizes, self.mesh)[0][name]
                   for dims, factors in values)

    def can_cut(self, name: str, axes: Axes) -> bool:
        """True if the operation can be computed with this factor in pieces."""
        return bool(name) and can_cut(self.rule, name, axes, self.mesh)
