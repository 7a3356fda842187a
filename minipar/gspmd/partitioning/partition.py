"""Partitioning: the program that each rank runs, with its collectives.

    y = x w            x (dp, ·)  w (·, tp)        the same operation on the local pieces
    z = y v            y (dp, tp) v (tp, ·)        partial sums: all-reduce, or reduce-scatter
    z + x              x (·, dp) instead           all-to-all first

An operation whose operands agree runs where they are.  Where they disagree, the cheapest
alternative runs: its collectives send the fewest bytes.  An operation may differ between ranks
along an axis along which its operand is the same on all.  It uses the operand through a `copy`,
whose gradient is summed, once for all operations that use the copy alike.  So the backward of the
program is its conjugate, and needs no rules of its own: copy ↔ all-reduce, all-gather ↔
reduce-scatter, all-to-all ↔ all-to-all.
"""

import math
from typing import Any

from ..constrain import Constrain
from ..graph import Graph, Operation, Value
from ..propagate import Shardings
from ..rules.rule import letters, to_dims
from ..rules.shapes import sliced_dimension
from ..shard_map import ShardMap
from ..spec import Axes, Dims, num_pieces
from .cuts import CutChoice, result_layout
from .overlaps import most_rows_sent
from .program import Cut, Instruction, Local, LocalProgram
from .reshard import Array, Layout, cheapest
from .simplify import simplified


class Partitioner:
    """Builds the local program of a graph, operation by operation."""

    def __init__(self, graph: Graph, shardings: Shardings):
        self.graph, self.shardings, self.mesh = graph, shardings, shardings.mesh
        self.instructions: list[Instruction] = []
        self.home: dict[Value, Local] = {}          # each value as propagation wants it
        self.known: dict[tuple, Local] = {}         # what was converted before, to be used again

    def run(self) -> LocalProgram:
        """Partition the whole graph."""
        inputs = {name: self.enter(value) for name, value in self.graph.inputs.items()}
        constants = [self.enter(value) for value in self.graph.constants]
        for operation in self.graph.operations:
            self.compute(operation)
        outputs = [self.home[value] for value in self.graph.outputs]
        return LocalProgram(self.graph, self.shardings, simplified(self.instructions, outputs),
                            inputs, constants, outputs, self.home)

    def enter(self, value: Value) -> Local:
        """The piece of an input that each rank is given."""
        self.home[value] = Local(value, Layout(self.shardings.of(value)), self.mesh)
        return self.home[value]

    def compute(self, operation: Operation) -> None:
        """Append an operation on pieces, after the collectives that its operands need."""
        if operation.function is Constrain:         # only its resharding is left to do
            x = self.home[operation.values[0]]
            self.home[operation.result] = self.settled(operation, x)
            return
        rule = self.shardings.rules[operation]
        cut = self.shardings.cuts.get(operation)
        if cut is None:
            cut = CutChoice(operation, self.shardings, self.home, self.goal).best()
        result = Local(operation.result, result_layout(operation, rule, cut, self.mesh), self.mesh)
        # the function of a shard_map has its own copies along axes that do not cut its result
        varies = {axis for axes in (result.layout.dims if operation.function is ShardMap
                                    else cut.values()) for axis in axes}
        bias = operation.inputs[2] if operation.function.__name__ == "Linear" \
            and result.layout.partial else None
        inputs: list[Any] = []
        for index, x in enumerate(operation.inputs):
            if not isinstance(x, Value):
                inputs.append(x)
            elif x is bias:
                inputs.append(None)         # it is added to the sum, not to each part
            else:
                goal = to_dims(cut, rule.of(index) or (), rule.sizes, self.mesh)
                inputs.append(self.converted(self.home[x], goal, varies))
        axes, inner_bytes = self.inner_collectives(operation, cut, result, inputs)
        self.append(Instruction("compute", inputs, result, axes, operation, cut,
                                inner_bytes=inner_bytes))
        home = self.settled(operation, result)
        if isinstance(bias, Value):
            home = self.converted(home, home.layout.dims, set())        # summed, if it is not yet
            axes = home.layout.dims[-1]
            varies = {axis for each in home.layout.dims for axis in each}
            added = Local(operation.result, home.layout, self.mesh)
            self.append(Instruction("add bias", [home, self.converted(
                self.home[bias], (axes,), varies)], added, operation=operation))
            home = added
        self.home[operation.result] = home

    def inner_collectives(self, operation: Operation, cut: Cut, result: Local,
                          inputs: list) -> tuple[Axes, float]:
        """The axes and the bytes of the messages that an operation sends by itself."""
        name = operation.function.__name__
        if name == "GetItem":
            return self.shifted_rows(operation, cut, inputs[0])
        if name == "CrossEntropy" and cut.get("v"):     # maximum, target, sum of each row
            num_bytes = 3 * math.prod(inputs[0].shape[:-1]) * inputs[0].value.dtype.itemsize
            axes = cut["v"]
        elif name == "Max":
            kept = {axis for axes in result.layout.dims for axis in axes}
            axes = tuple([axis for each in cut.values() for axis in each if axis not in kept])
            num_bytes = result.nbytes
        else:
            return (), 0.0
        p = num_pieces(axes, self.mesh)
        return axes, num_bytes * 2 * (p - 1) / p

    def shifted_rows(self, operation: Operation, cut: Cut, x: Local) -> tuple[Axes, float]:
        """The axes and the bytes of a slice whose dimension stays cut."""
        sliced = sliced_dimension(operation)
        axes = () if sliced is None else cut.get(letters(sliced.dim + 1)[-1], ())
        if sliced is None or not axes:
            return (), 0.0
        rows = most_rows_sent(sliced.length, sliced.start, sliced.stop,
                              num_pieces(axes, self.mesh))
        return axes, rows * x.nbytes / x.shape[sliced.dim]

    def goal(self, operation: Operation, made: Layout) -> Dims | None:
        """The layout that a result is brought into; None: it stays as it is made."""
        return self.shardings.of(operation.result)

    def settled(self, operation: Operation, made: Local) -> Local:
        """The result of an operation, where it goes."""
        goal = self.goal(operation, made.layout)
        return made if goal is None else self.converted(made, goal, set())

    def append(self, instruction: Instruction) -> Local:
        """Append an instruction; return its result."""
        self.instructions.append(instruction)
        return instruction.result

    # ---- layouts

    def converted(self, local: Local, goal: Dims, varies: set[str]) -> Local:
        """The value in the layout `goal`, for an operation that differs along the axes `varies`."""
        own = {axis for axes in local.layout.dims for axis in axes}
        after = {axis for axes in goal for axis in axes}
        copies = tuple([axis for axis in self.mesh if axis in varies - own - after]) \
            if local.value.needs_grad else ()
        gathers = frozenset((own - after) & varies)
        key = (local, goal, copies, gathers)
        if key not in self.known:
            self.known[key] = self.append_moves(local, goal, copies, gathers)
        return self.known[key]

    def append_moves(self, local: Local, goal: Dims, copies: Axes,
                     gathers: frozenset[str]) -> Local:
        """Append the collectives that bring a piece into the layout `goal`.

        A copy comes first, where the piece is smallest; of partial sums it can come only last.
        """
        is_partial = bool(local.layout.partial)
        if copies and not is_partial:
            local = self.append(Instruction("copy", [local], Local(
                local.value, local.layout, self.mesh), axes=copies))
        for move in cheapest(Array.of(local.value), local.layout, goal, self.mesh):
            is_shared = move.kind == "all-gather" and not gathers.issuperset(move.axes)
            local = self.append(Instruction("gather" if is_shared else move.kind, [local], Local(
                local.value, move.after, self.mesh), axes=move.axes, move=move))
            if is_shared and gathers.intersection(move.axes):       # used alike along some of them
                local = self.append(Instruction("copy", [local], Local(
                    local.value, local.layout, self.mesh),
                    axes=tuple([axis for axis in move.axes if axis in gathers])))
        if copies and is_partial:
            local = self.append(Instruction("copy", [local], Local(
                local.value, local.layout, self.mesh), axes=copies))
        return local


def partition(graph: Graph, shardings: Shardings) -> LocalProgram:
    """The local program of a graph whose values are sharded so."""
    return Partitioner(graph, shardings).run()
