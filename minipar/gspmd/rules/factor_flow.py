"""One operation's step of the propagation: axes flow along its factors.

    1  for each factor, the axes on which the operands and the result agree
    2  factors in order of preference: the larger tensor first, then (element-wise) more pieces,
       then the earlier operand, then the earlier factor
    3  each value takes, factor by factor, the longest beginning of these axes that it can

Shardy's aggressive factor propagation.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

from ..graph import Operation, Value
from ..spec import Axes, is_extension
from .rule import DimFactors, FactorRule, to_dims, to_factors

if TYPE_CHECKING:
    from ..propagate import Shardings


class Conflict(NamedTuple):
    """An axis that two factors of an operation wanted in one value, and why one of them has it."""

    operation: str
    value: str
    axis: str
    won: str            # the annotation from which the axis came to the factor that has it
    lost: str           # the annotation from which it would have come to the other
    reason: str


class View(NamedTuple):
    """A value as one operation sees it: the axes of each factor, and `over`, those of no factor."""

    place: int          # the number of the operand; -1: the result
    value: Value
    axes: dict[str, Axes]
    over: Axes

    def others(self, factor: str) -> set[str]:
        """The axes that this value has elsewhere than on `factor`."""
        return {axis for name, axes in self.axes.items() if name != factor for axis in axes} | set(
            self.over)


class Flow:
    """The step of one operation in one round: axes flow between its operands and its result."""

    def __init__(self, operation: Operation, shardings: "Shardings", round_number: int):
        self.operation, self.shardings, self.round = operation, shardings, round_number
        self.rule: FactorRule = shardings.rules[operation]
        self.mesh = shardings.mesh
        self.views: list[View] = []

    def run(self) -> bool:
        """Update the shardings; return True if one has changed."""
        directions = {name: self.is_open(name) for name in self.rule.factors}
        if not any(directions.values()):
            return False
        views = self.views = [self.view(-1), *[
            self.view(i) for i, dims in enumerate(self.rule.operands) if dims is not None]]
        agreed = {name: self.agreed_axes(name, views) if is_open else ()
                  for name, is_open in directions.items()}
        if not any(agreed.values()):
            return False
        ranking = self.ranking(agreed, views)
        changed = False
        for view in views:
            if view.place in self.rule.repeated and self.round < 2:
                continue
            for name in sorted(self.rule.factors, key=ranking.__getitem__):
                changed |= self.extend(view, name, agreed[name], ranking, views[0])
        return changed

    def is_open(self, factor: str) -> bool:
        """True if axes flow along `factor` in this round."""
        uses = [x.num_uses for i, x in enumerate(self.operation.inputs)
                if isinstance(x, Value) and x.shape and i not in self.rule.repeated]
        return (self.rule.moves and (self.round >= 1 or all(n == 1 for n in uses))
                or self.round >= 2 and factor not in self.rule.contracted or self.round >= 3)

    def view(self, index: int) -> View:
        """Operand `index`, or the result, factor by factor."""
        value = self.operation.result if index < 0 else self.operation.inputs[index]
        axes, over = to_factors(self.shardings.of(value), self.rule.of(index) or (),
                                self.rule.sizes, self.mesh)
        return View(index, value, axes, over)

    def agreed_axes(self, factor: str, views: list[View]) -> Axes:
        """The axes of a factor on which all views agree, major first."""
        agreed: Axes = ()
        can_extend = True
        for view in (*views[1:], views[0]):
            if factor not in view.axes or view.place in self.rule.repeated and self.round < 4:
                continue
            own = view.axes[factor]
            common = next((i for i, (a, b) in enumerate(zip(agreed, own)) if a != b), None)
            if common is not None:
                agreed, can_extend = agreed[:common], False
            elif can_extend and len(own) > len(agreed):
                agreed = own
        return agreed

    def ranking(self, agreed: dict[str, Axes], views: list[View]) -> dict[str, tuple]:
        """A key for each factor; of factors that compete, the one with the smallest key wins."""
        source = dict.fromkeys(self.rule.factors, (1, -1))
        for place, view in enumerate((*views[1:], views[0])):
            size = math.prod(self.rule.sizes[name] for name in view.axes)
            for name, own in view.axes.items():
                wanted = agreed[name]
                if wanted and own[:len(wanted)] == wanted and -size < source[name][0]:
                    source[name] = (-size, place)
        pieces = {name: math.prod(self.mesh[axis] for axis in axes) if self.rule.elementwise else 1
                  for name, axes in agreed.items()}
        return {name: (source[name][0], -pieces[name], source[name][1], i)
                for i, name in enumerate(self.rule.factors)}

    def extend(self, view: View, factor: str, wanted: Axes, ranking: dict[str, tuple],
               result: View) -> bool:
        """Cut one factor of a value by more of the `wanted` axes; True if that was possible."""
        if factor not in view.axes:
            return False
        own = view.axes[factor]
        if view.place in self.rule.repeated:
            wanted = result.axes[factor]    # as if a broadcast of its own came before
        axes = self.possible(view, factor, wanted)
        if not is_extension(own, axes):
            return False
        taken = view.others(factor)
        free = next((i for i, axis in enumerate(axes) if axis in taken), len(axes))
        if free < len(axes):
            self.note_conflict(view, factor, axes[free], ranking)
        axes = axes[:free]
        if view.place >= 0 and self.rule.elementwise and is_extension(
                result.axes.get(factor, axes), axes):
            axes = result.axes[factor]      # what the result cannot have is of no use to operands
        if not is_extension(own, axes):
            return False
        factors = self.rule.of(view.place) or ()
        dim = dim_of(factor, factors)
        after = to_dims(view.axes | {factor: axes}, factors, self.rule.sizes, self.mesh)[dim]
        if not self.shardings.extend(view.value, dim, after):
            return False        # axes before it, or of no factor, would be lost
        view.axes[factor] = axes
        for axis in axes:
            self.shardings.origin.setdefault((view.value, axis), self.origin_of(factor, axis))
        return True

    def possible(self, view: View, factor: str, wanted: Axes) -> Axes:
        """The longest beginning of `wanted` that a factor can have, whatever other factors have."""
        dims = self.rule.of(view.place) or ()
        dim = dim_of(factor, dims)
        is_last = dims[dim][-1] == factor
        is_closed = self.shardings.closed[view.value][dim]
        room = self.rule.sizes[factor]
        for i, axis in enumerate(wanted):
            p = self.mesh[axis]
            if axis not in view.axes[factor] and (is_closed or not is_last and room % p):
                return wanted[:i]
            room = room // p if room % p == 0 else 1
        return wanted

    def origin_of(self, factor: str, axis: str) -> str:
        """The annotation from which a value of this operation has `axis` on `factor`."""
        return next(self.shardings.origin[view.value, axis] for view in self.views
                    if axis in view.axes.get(factor, ()) and (view.value, axis)
                    in self.shardings.origin)

    def note_conflict(self, view: View, factor: str, axis: str, ranking: dict[str, tuple]) -> None:
        """Remember that `axis` could not cut a value along `factor`: it cuts another factor."""
        winner = next((name for name, axes in view.axes.items() if axis in axes), None)
        conflict = Conflict(self.operation.name, view.value.name, axis,
                            self.shardings.origin[view.value, axis], self.origin_of(factor, axis),
                            self.reason(ranking, winner, factor, view, axis))
        if all(conflict[:3] != known[:3] for known in self.shardings.conflicts):
            self.shardings.conflicts.append(conflict)

    def reason(self, ranking: dict[str, tuple], winner: str | None, loser: str, view: View,
               axis: str) -> str:
        """The reason why `winner` keeps the axis."""
        if self.shardings.closed[view.value] and all(self.shardings.closed[view.value]):
            return "the value is annotated"
        if winner is None or ranking[winner] > ranking[loser]:
            return "it was there in an earlier round"
        if ranking[winner][0] < ranking[loser][0]:
            return "it comes from the larger tensor"
        if ranking[winner][1] < ranking[loser][1]:
            return "it makes more pieces"
        if ranking[winner][2] < ranking[loser][2]:
            return "it comes from the earlier operand"
        return "it is the earlier dimension"


def dim_of(factor: str, factors: DimFactors) -> int:
    """The number of the dimension that contains a factor."""
    return next(dim for dim, parts in enumerate(factors) if factor in parts)
