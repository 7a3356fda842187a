"""The collectives that bring a value to an operation, and take its gradient back.

    x (dp, ·) for an operation that differs along tp        copy tp: its gradient is summed
    w (dp, ·) → (·, ·), the operation differs along dp      all-gather ↔ reduce-scatter
    w (dp, ·) → (·, ·), the same on all ranks along dp      gather ↔ slice

The search for the cheapest sharding counts the seconds of these collectives.
"""

from ..spec import Dims, all_axes
from .program import Instruction, Local
from .reshard import ArraySizes, cheapest


def conversion(local: Local, goal: Dims, varies: set[str]) -> list[Instruction]:
    """The instructions that bring a piece into `goal`, for an operation that `varies` along axes.

    A copy comes first: before gathers the piece is smallest.  For partial sums it can only come
    last.
    """
    own, after = set(all_axes(local.layout.dims)), set(all_axes(goal))
    copies = tuple([axis for axis in local.mesh if axis in varies - own - after]) \
        if local.value.needs_grad else ()
    gathers = (own - after) & varies
    found: list[Instruction] = []

    def copied(x: Local, axes: tuple[str, ...]) -> Local:
        found.append(Instruction("copy", [x], Local(x.value, x.layout, x.mesh), axes=axes))
        return found[-1].result

    is_partial = bool(local.layout.partial)
    if copies and not is_partial:
        local = copied(local, copies)
    for move in cheapest(ArraySizes.of(local.value), local.layout, goal, local.mesh):
        is_shared = move.kind == "all-gather" and not gathers.issuperset(move.axes)
        found.append(Instruction("gather" if is_shared else move.kind, [local], Local(
            local.value, move.after, local.mesh), axes=move.axes, move=move))
        local = found[-1].result
        if is_shared and gathers.intersection(move.axes):       # used alike along some of them
            local = copied(local, tuple([axis for axis in move.axes if axis in gathers]))
    if copies and is_partial:
        copied(local, copies)
    return found
