"""Partitioning: the program that each rank runs, with its collectives.

    y = x w            x (dp, ·)  w (·, tp)        the same operation on the local pieces
    z = y v            y (dp, tp) v (tp, ·)        partial sums: all-reduce, or reduce-scatter
    z + x              z (dp, ·)  x (·, dp)        all-to-all of one of them first

An operation whose operands agree runs where they are.  Where they disagree, it takes the cut whose
collectives send the fewest bytes.  The ranks along an axis may have the same operand, and compute
different parts with it.  They use it through a `copy`.  The copy's gradient is summed over these
ranks, once for all operations that share the copy.  So the backward of the program is its
conjugate, and needs no rules of its own.  The pairs are copy ↔ all-reduce, all-gather ↔
reduce-scatter, gather ↔ slice, all-to-all ↔ all-to-all and permute ↔ permute.
"""

from typing import Any

from ...autograd.ops.cross_entropy import CrossEntropy
from ...autograd.ops.matmul import Linear
from ...autograd.ops.movement import GetItem
from ...autograd.ops.reductions import Max
from ..constrain import Constrain
from ..graph import Graph, Operation, Value
from ..propagate import Shardings
from ..rules.rule import letters, to_dims
from ..rules.shapes import sliced_dimension
from ..shard_map import ShardMap
from ..spec import Axes, Dims, all_axes, num_pieces
from .conversion import conversion
from .cuts import CutChoice, result_layout
from .overlaps import num_rows_sent
from .program import Cut, Instruction, Local, LocalProgram
from .reshard import ShardedLayout
from .simplify import simplified


class Partitioner:
    """Builds the local program of a graph, operation by operation."""

    def __init__(self, graph: Graph, shardings: Shardings):
        self.graph, self.shardings, self.mesh = graph, shardings, shardings.mesh
        self.instructions: list[Instruction] = []
        self.home: dict[Value, Local] = {}          # each value, in the layout of the propagation
        self.known: dict[tuple, Local] = {}         # conversions made before, to be used again

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
        self.home[value] = Local(value, ShardedLayout(self.shardings.of(value)), self.mesh)
        return self.home[value]

    def compute(self, operation: Operation) -> None:
        """Append an operation on pieces, after the collectives that its operands need."""
        if operation.function is Constrain and operation.values[0].sections \
                == operation.result.sections:       # only its resharding is left to do
            x = self.home[operation.values[0]]
            self.home[operation.result] = self.settled(operation, x)
            return
        rule = self.shardings.rules[operation]
        cut = self.shardings.cuts.get(operation)
        if cut is None:
            cut = CutChoice(operation, self.shardings, self.home, self.goal).best()
        result = Local(operation.result, result_layout(operation, rule, cut, self.mesh), self.mesh)
        # the function of a shard_map has its own copies along axes that do not cut its result
        varies = set(all_axes(result.layout.dims if operation.function is ShardMap
                              else cut.values()))
        bias = operation.inputs[2] if operation.function is Linear \
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
        self.home[operation.result] = self.settled(operation, result) if bias is None \
            else self.with_bias(operation, result, self.home[bias])

    def with_bias(self, operation: Operation, parts: Local, bias: Local) -> Local:
        """The sum of the partial results of a linear layer, plus its bias.

        A cut row of [q | k | v] does not match a bias in natural order: then both are made whole.
        """
        goal = self.goal(operation, parts.layout) or parts.layout.dims
        if bias.value.sections != operation.result.sections:
            goal = (*goal[:-1], ())
        home = self.converted(parts, goal, set())
        varies = set(all_axes(goal))
        added = Local(operation.result, home.layout, self.mesh)
        self.append(Instruction("add bias", [home, self.converted(bias, goal[-1:], varies)], added,
                                operation=operation))
        return self.settled(operation, added)

    def inner_collectives(self, operation: Operation, cut: Cut, result: Local,
                          inputs: list) -> tuple[Axes, float]:
        """(axes, bytes a rank sends) of the messages that an operation sends by itself."""
        if operation.function is GetItem:
            return self.shifted_rows(operation, cut, inputs[0])
        if operation.function is CrossEntropy and cut.get("v"):     # maximum, target, sum of a row
            axes = cut["v"]
            num_bytes = 3 * inputs[0].mean_bytes / inputs[0].value.shape[-1] * num_pieces(
                axes, self.mesh)
        elif operation.function is Max:
            kept = all_axes(result.layout.dims)
            axes = tuple([axis for axis in all_axes(cut.values()) if axis not in kept])
            num_bytes = result.mean_bytes
        else:
            return (), 0.0
        p = num_pieces(axes, self.mesh)
        return axes, num_bytes * 2 * (p - 1) / p

    def shifted_rows(self, operation: Operation, cut: Cut, x: Local) -> tuple[Axes, float]:
        """(axes, bytes a rank sends) of a slice whose dimension stays cut."""
        sliced = sliced_dimension(operation)
        axes = () if sliced is None else cut.get(letters(sliced.dim + 1)[-1], ())
        if sliced is None or not axes:
            return (), 0.0
        rows = num_rows_sent(sliced.length, sliced.start, sliced.stop, num_pieces(axes, self.mesh))
        return axes, rows * x.mean_bytes / sliced.length

    def goal(self, operation: Operation, made: ShardedLayout) -> Dims | None:
        """The layout into which a result is brought; None if it stays as it is made."""
        return self.shardings.of(operation.result)

    def settled(self, operation: Operation, made: Local) -> Local:
        """The result of an operation, in the layout of `goal`."""
        goal = self.goal(operation, made.layout)
        return made if goal is None else self.converted(made, goal, set())

    def append(self, instruction: Instruction) -> Local:
        """Append an instruction; return its result."""
        self.instructions.append(instruction)
        return instruction.result

    def converted(self, local: Local, goal: Dims, varies: set[str]) -> Local:
        """The value in the layout `goal`, for an operation that differs along the axes `varies`.

        Conversions that are alike are made once.
        """
        moves = conversion(local, goal, varies)
        key = (local, goal, tuple([(each.kind, each.axes) for each in moves]))
        if moves and key not in self.known:
            self.instructions += moves
            self.known[key] = moves[-1].result
        return self.known[key] if moves else local


def partition(graph: Graph, shardings: Shardings) -> LocalProgram:
    """The local program of a graph whose values are cut as `shardings` say."""
    return Partitioner(graph, shardings).run()
