"""Partitioning: the program that each rank runs, with its collectives.

    y = x w            x (dp, ·)  w (·, tp)        the same operation on the local pieces
    z = y v            y (dp, tp) v (tp, ·)        partial sums: all-reduce, or reduce-scatter
    z + x              x (·, dp) instead           all-to-all first

An operation whose operands agree runs where they are.  Where they disagree, the alternative runs
whose collectives send the fewest bytes.  A value that is the same on all ranks of an axis, used by
an operation that differs along it, is used through a `copy`: its gradient is summed there, once for
all operations that use it alike.  So the backward of the program is its conjugate, and needs no
rules of its own: copy ↔ all-reduce, all-gather ↔ reduce-scatter, all-to-all ↔ all-to-all.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .graph import Graph, Operation, Value
from .propagate import Shardings
from .reshard import Array, Layout, Move, cheapest
from .rules.rule import FactorRule, fits, flat_names, to_dims, to_factors
from .spec import Axes, Dims, local_shape, num_pieces

Cut = dict[str, Axes]           # the axes of each factor of an operation


@dataclass(eq=False)
class Local:
    """A rank's piece of a value, in one layout."""

    value: Value
    layout: Layout
    mesh: Mapping[str, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the padded piece."""
        return local_shape(self.value.shape, self.layout.dims, self.mesh)


@dataclass(eq=False)
class Instruction:
    """One step of the local program: an operation on pieces, or a collective.

    kind: "compute"; "copy" (identity, whose gradient is summed over `axes`); "mask" (padding is
    filled); "all-gather" whose gradient is reduce-scattered, "gather" whose gradient is sliced;
    or another kind of Move.
    """

    kind: str
    inputs: list
    result: Local
    axes: Axes = ()
    operation: Operation | None = None
    cut: Cut = field(default_factory=dict)
    move: Move | None = None
    fill: dict[int, float] = field(default_factory=dict)    # dimension → the number in its padding
    without_bias: bool = False

    @property
    def num_bytes(self) -> float:
        """The bytes that a rank sends in forward."""
        return self.move.num_bytes if self.move else 0.0


@dataclass
class LocalProgram:
    """What every rank runs: instructions in order, from the pieces of the inputs to the outputs."""

    graph: Graph
    shardings: Shardings
    instructions: list[Instruction]
    inputs: dict[str, Local]
    constants: list[Local]
    outputs: list[Local]

    @property
    def collectives(self) -> list[Instruction]:
        """The instructions that send messages in forward."""
        return [each for each in self.instructions if each.num_bytes]

    @property
    def num_bytes(self) -> float:
        """The bytes that a rank sends in forward."""
        return sum(each.num_bytes for each in self.instructions)


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
        return LocalProgram(self.graph, self.shardings, self.instructions, inputs, constants,
                            [self.home[value] for value in self.graph.outputs])

    def enter(self, value: Value) -> Local:
        """The piece of an input that each rank is given."""
        self.home[value] = Local(value, Layout(self.shardings.of(value)), self.mesh)
        return self.home[value]

    def compute(self, operation: Operation) -> None:
        """Append an operation on pieces, after the collectives that its operands need."""
        rule = self.shardings.rules[operation]
        cut = self.best_cut(operation, rule)
        varies = {axis for axes in cut.values() for axis in axes}
        partial = frozenset(axis for name in summed(operation, rule) for axis in cut.get(name, ()))
        bias = operation.inputs[2] if operation.function.__name__ == "Linear" and partial else None
        inputs = []
        for index, x in enumerate(operation.inputs):
            if not isinstance(x, Value) or not x.shape:
                inputs.append(self.home[x] if isinstance(x, Value) else x)
            elif x is bias:
                inputs.append(None)         # it is added to the sum, not to each part
            else:
                goal = to_dims(cut, rule.of(index) or (), rule.sizes, self.mesh)
                inputs.append(self.mask(operation, rule, cut, index,
                                        self.converted(self.home[x], goal, varies)))
        result = Local(operation.result, Layout(to_dims(cut, rule.result, rule.sizes, self.mesh),
                                                partial), self.mesh)
        self.append(Instruction("compute", inputs, result, operation=operation, cut=cut,
                                without_bias=isinstance(bias, Value)))
        home = self.converted(result, self.shardings.of(operation.result), set())
        if isinstance(bias, Value):
            axes = home.layout.dims[-1]
            varies = {axis for each in home.layout.dims for axis in each}
            added = Local(operation.result, home.layout, self.mesh)
            self.append(Instruction("add bias", [home, self.converted(
                self.home[bias], (axes,), varies)], added, operation=operation))
            home = added
        self.home[operation.result] = home

    def append(self, instruction: Instruction) -> Local:
        """Append an instruction; return its result."""
        self.instructions.append(instruction)
        return instruction.result

    # ---- where an operation runs

    def best_cut(self, operation: Operation, rule: FactorRule) -> Cut:
        """The axes of each factor: those of the operands, if they agree; else the cheapest."""
        cuts = list(self.possible_cuts(operation, rule))
        if len(cuts) == 1:
            return cuts[0]
        return min(cuts, key=lambda cut: (
            self.cost(operation, rule, cut), -num_pieces(
                tuple(axis for axes in cut.values() for axis in axes), self.mesh),
            sorted(summed(operation, rule) & {name for name in cut if cut[name]})))

    def possible_cuts(self, operation: Operation, rule: FactorRule) -> Iterator[Cut]:
        """All ways to give the axes of the operands and the result to factors."""
        wanted: dict[str, list[str]] = {}           # axis → factors that have it already
        order: list[str] = []
        forced: set[str] = set()
        for index in (*range(len(operation.inputs)), -1):
            value = operation.result if index < 0 else operation.inputs[index]
            if not isinstance(value, Value) or rule.of(index) is None:
                continue
            by_factor, over = to_factors(self.shardings.of(value), rule.of(index) or (),
                                         rule.sizes, self.mesh)
            for name, axes in by_factor.items():
                for axis in axes:
                    if index < 0 and axis in wanted:
                        continue                    # the operands decide
                    if name not in wanted.setdefault(axis, []):
                        wanted[axis].append(name)
                    order += [axis] if axis not in order else []
            for axis in over:
                wanted.setdefault(axis, [])
                forced.add(axis)
                order += [axis] if axis not in order else []
        options: list[list[str | None]] = []
        for axis in order:
            names: list[str | None] = [
                name for name in wanted[axis] if self.can_cut(rule, name, (axis,))]
            if len(wanted[axis]) != 1 or len(names) != 1 or axis in forced:
                names += [name for name in rule.factors
                          if name not in names and self.can_cut(rule, name, (axis,))]
                names.append(None)
            options.append(names)
        found = 0
        for choice in itertools.product(*options):
            cut: Cut = {}
            for axis, name in zip(order, choice):
                if name is not None:
                    cut[name] = (*cut.get(name, ()), axis)
            if all(self.can_cut(rule, name, axes) for name, axes in cut.items()) and all(
                    fits(cut, rule.of(i) or (), rule.sizes, self.mesh)
                    for i in range(-1, len(rule.operands)) if rule.of(i) is not None):
                found += 1
                yield cut
        if not found:
            yield {}

    def can_cut(self, rule: FactorRule, name: str, axes: Axes) -> bool:
        """True if the operation can be computed with this factor in pieces."""
        if name in rule.whole or rule.sizes[name] < 2:
            return False
        shared = any(name in parts and len(parts) > 1
                     for i in range(-1, len(rule.operands)) for parts in rule.of(i) or ())
        return not shared or rule.sizes[name] % num_pieces(axes, self.mesh) == 0

    def cost(self, operation: Operation, rule: FactorRule, cut: Cut) -> float:
        """The bytes that a rank sends around an operation that is cut so."""
        total = 0.0
        for index, x in enumerate(operation.inputs):
            if isinstance(x, Value) and rule.of(index) is not None:
                goal = to_dims(cut, rule.of(index) or (), rule.sizes, self.mesh)
                total += sum(move.num_bytes for move in self.moves(self.home[x], goal))
        partial = frozenset(axis for name in summed(operation, rule) for axis in cut.get(name, ()))
        result = Local(operation.result, Layout(to_dims(cut, rule.result, rule.sizes, self.mesh),
                                                partial), self.mesh)
        goal = self.shardings.of(operation.result)
        return total + sum(move.num_bytes for move in self.moves(result, goal))

    # ---- layouts

    def moves(self, local: Local, goal: Dims) -> list[Move]:
        """The cheapest collectives from a piece's layout to `goal`."""
        value = local.value
        return cheapest(Array(value.shape, value.dtype.itemsize, bool(value.sections)),
                        local.layout, goal, self.mesh)

    def converted(self, local: Local, goal: Dims, varies: set[str]) -> Local:
        """The value in the layout `goal`, for an operation that differs along the axes `varies`."""
        own = {axis for axes in local.layout.dims for axis in axes}
        after = {axis for axes in goal for axis in axes}
        copies = tuple([axis for axis in self.mesh if axis in varies - own - after]) \
            if not local.layout.partial else ()
        gathers = frozenset((own - after) & varies)
        key = (local, goal, copies, gathers)
        if key not in self.known:
            self.known[key] = self.append_moves(local, goal, copies, gathers)
        return self.known[key]

    def append_moves(self, local: Local, goal: Dims, copies: Axes,
                     gathers: frozenset[str]) -> Local:
        """Append the collectives that bring a piece into the layout `goal`."""
        if copies:
            local = self.append(Instruction("copy", [local], Local(
                local.value, local.layout, self.mesh), axes=copies))
        for move in self.moves(local, goal):
            kind = move.kind
            if kind == "all-gather" and not gathers.issuperset(move.axes):
                if gathers & set(move.axes):
                    raise AssertionError("an all-gather over axes that are used in different ways")
                kind = "gather"
            local = self.append(Instruction(kind, [local], Local(
                local.value, move.after, self.mesh), axes=move.axes, move=move))
        return local

    def mask(self, operation: Operation, rule: FactorRule, cut: Cut, index: int,
             local: Local) -> Local:
        """The operand with its padding filled, where the padding would change the result."""
        from .local_call import neutral_fill
        fill = {}
        for dim, parts in enumerate(rule.of(index) or ()):
            uneven = local.shape[dim] * num_pieces(local.layout.dims[dim], self.mesh) \
                != local.value.shape[dim]
            if uneven:
                number = neutral_fill(operation, rule, index, parts[0])
                if number is not None:
                    fill[dim] = number
        if not fill:
            return local
        return self.append(Instruction("mask", [local], Local(
            local.value, local.layout, self.mesh), fill=fill))


def summed(operation: Operation, rule: FactorRule) -> set[str]:
    """The contracted factors whose partial results must be summed outside the operation."""
    if rule.combine != "sum":
        return set()                        # a maximum over ranks is taken within the operation
    if operation.function.__name__ == "CrossEntropy":
        return rule.contracted - set(flat_names((rule.operands[0] or ())[-1:]))
    return rule.contracted


def partition(graph: Graph, shardings: Shardings) -> LocalProgram:
    """The local program of a graph whose values are sharded so."""
    return Partitioner(graph, shardings).run()
