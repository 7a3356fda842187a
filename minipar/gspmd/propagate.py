"""Propagation: from a few annotated values to the sharding of every value.

    x (dp, ·) ──▶ linear ──▶ gelu ──▶ linear ──▶ y        given: x (dp, ·), w1 (·, tp)
    w1 (·, tp) ───┘  (dp, tp)   (dp, tp)   │  (dp, ·)     found: all others
    w2 (tp, ·) ────────────────────────────┘

Each operation lets the axes of a factor flow between its operands and its result, in both
directions, until nothing changes.  The most certain choices come first:

    annotations of priority 0, then of priority 1, …; after each priority five rounds:
    0   element-wise operations, reshapes and transposes, whose operands have no other use
    1   the same operations, with any number of uses
    2   factors that pass through any operation; broadcasts only from the result to the operand
    3   contracted factors, too
    4   broadcasts from the operand to the result, too

Annotated values never change.  The result depends on the graph, not on the order in which it was
built.  The rounds are those of OpenXLA's Shardy; Xu et al. 2021 (GSPMD), section 3.5.
"""

import difflib
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from .graph import Graph, Operation, Value
from .rules import rule_of
from .rules.factor_flow import Conflict, Flow
from .rules.heads import mark_sections
from .rules.rule import FactorRule
from .shard_map import ShardMap, cut_of
from .spec import Axes, Dims, PartitionSpec, is_extension, show

ROUNDS = 5


@dataclass
class Shardings:
    """The axes of each dimension of each value, the annotations they came from, the conflicts.

    Dimensions that are `closed` take no more axes.
    """

    mesh: Mapping[str, int]
    dims: dict[Value, list[Axes]]
    closed: dict[Value, list[bool]]
    rules: dict[Operation, FactorRule]
    cuts: dict[Operation, dict[str, Axes]] = field(default_factory=dict)   # chosen beforehand
    origin: dict[tuple[Value, str], str] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)

    def of(self, value: Value) -> Dims:
        """The axes of each dimension of a value."""
        return tuple(self.dims[value])

    def extend(self, value: Value, dim: int, axes: Axes) -> bool:
        """Cut a dimension by `axes` if they extend those that it has; return whether they did."""
        if not is_extension(self.dims[value][dim], axes):
            return False
        self.dims[value][dim] = axes
        return True


def propagate(graph: Graph, mesh: Mapping[str, int],
              annotations: Mapping[str, PartitionSpec]) -> Shardings:
    """The shardings that follow from `annotations`: names of inputs and results, and their specs.

    `mesh` maps axes to sizes.  Raises ValueError for an unknown name and for a spec that does not
    fit its value, TypeError for an operation without a rule.
    """
    shardings = all_open(graph, mesh)
    waiting = [(spec.priority, value, value.name, spec) for value, spec in
               annotated(graph, annotations)]
    for operation in graph.operations:
        spec = operation.options.get("spec")
        if isinstance(spec, PartitionSpec):
            waiting.append((spec.priority, operation.result, operation.name, spec))
    for _, value, name, spec in waiting:        # earlier priorities cut none of them
        spec.dims_of(value.shape, mesh, name)
        shardings.closed[value] = [True] * len(value.shape)
    for priority in sorted({each[0] for each in waiting}):
        for own, value, name, spec in waiting:
            if own == priority:
                shardings.dims[value] = list(spec.dims_of(value.shape, mesh, name))
                shardings.origin |= {(value, axis): f"{name} {show(spec.dims)}"
                                     for axes in spec.dims for axis in axes}
        for round_number in range(ROUNDS):
            _to_fixed_point(graph, shardings, round_number)
    return shardings


def all_open(graph: Graph, mesh: Mapping[str, int]) -> Shardings:
    """Shardings in which no value is cut yet, with the rules of all operations."""
    mark_sections(graph)
    values = [*graph.inputs.values(), *graph.constants, *[op.result for op in graph.operations]]
    return Shardings(mesh, {v: [()] * len(v.shape) for v in values},
                     {v: [False] * len(v.shape) for v in values},
                     {op: rule_of(op) for op in graph.operations},
                     {op: cut_of(op) for op in graph.operations if op.function is ShardMap})


def annotated(graph: Graph, annotations: Mapping[str, PartitionSpec]) -> list[
        tuple[Value, PartitionSpec]]:
    """The values that annotations name; in names `*` stands for any text: h.*.mlp.c_fc.weight."""
    values = [*graph.inputs.values(), *[each.result for each in graph.operations]]
    found = []
    for pattern, spec in annotations.items():
        named = [value for value in values if fnmatch.fnmatchcase(value.name, pattern)]
        if not named:
            names = [value.name for value in values]
            close = difflib.get_close_matches(pattern, names, 3) or names[:3]
            raise ValueError(f"no value of the program is called {pattern!r}: names are those of "
                             f"inputs, parameters and results, as {', '.join(close)}")
        found += [(value, spec) for value in named]
    return found


def _to_fixed_point(graph: Graph, shardings: Shardings, round_number: int) -> None:
    """Let axes flow through all operations, forth and back, until nothing changes.

    This ends: in each pass some value gains an axis, and a value can have each axis only once.
    """
    for _ in range(len(shardings.dims) * len(shardings.mesh) + 1):
        changed = [Flow(operation, shardings, round_number).run()
                   for operation in (*graph.operations, *reversed(graph.operations))]
        if not any(changed):
            return
    raise AssertionError("the propagation does not end: a value has lost an axis")
