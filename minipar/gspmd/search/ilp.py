"""Automatic sharding: an integer linear program chooses an alternative for each operation.

    s_i  one-hot: the alternative of operation i         cost c_i · s_i
    e_ij one-hot: the pair of alternatives on an edge    cost R_ij · e_ij, the resharding between

    minimize Σ c_i s_i + Σ R_ij e_ij
    with Σ s_i = 1,  e_ij summed over j's = s_i,  e_ij summed over i's = s_j,  Σ bytes s_i ≤ memory

A conversion of one value that several operations need is paid once (SharedConversion).  The
objective is the time of the partitioned program, except where a copy moves before an operation:
there it is an upper bound.

Zheng et al. 2022 (Alpa, arXiv 2201.12023), section 4.2.  The solver is HiGHS, through SciPy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...nn import Module
from ..graph import Graph, Operation, Value, trace
from ..partitioning.partition import partition
from ..partitioning.reshard import ShardedLayout
from ..propagate import Shardings, all_open
from ..shard import ShardingPlan, shape_only
from ..spec import Dims
from .choices import OperationChoice, choices_of, conversion_parts, layouts, local_bytes
from .machine import COPIES, Machine, memory_bytes, program_seconds

Parts = dict[tuple, tuple[float, np.ndarray]]   # conversions: seconds, and the pairs that need it


class Alternatives(NamedTuple):
    """An operation or an input, with its alternatives: layouts of its value, cost and memory."""

    value: Value
    homes: list[Dims]
    seconds: np.ndarray         # (alternatives,)
    num_bytes: np.ndarray       # (alternatives,)
    choices: list[OperationChoice]      # for an operation; empty for an input


class Edge(NamedTuple):
    """A value and an operation that uses it; `seconds` has a row for each layout of the value."""

    source: int
    user: int
    seconds: np.ndarray


class SharedConversion(NamedTuple):
    """A conversion that several uses of a value may need, and that is made once for all.

    `needed` has, by the number of an edge, the pairs of alternatives that need the conversion.
    """

    seconds: float
    needed: dict[int, np.ndarray]


class Equations:
    """Linear equations as a sparse matrix: the entries by row and column, and the right sides.

    `least` are the right sides, or −∞ where the left side may be less.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.sums: list[float] = []
        self.least: list[float] = []

    def add(self, variables: np.ndarray, total: float = 0.0, equal_to: int | None = None,
            or_less: bool = False) -> None:
        """Let the `variables` add up to `total`, or to the variable `equal_to`.

        With `or_less`, they may add up to less.
        """
        entries = [(variable, 1.0) for variable in variables.tolist()]
        entries += [] if equal_to is None else [(int(equal_to), -1.0)]
        self.rows += [len(self.sums)] * len(entries)
        self.columns += [variable for variable, _ in entries]
        self.values += [factor for _, factor in entries]
        self.sums.append(total)
        self.least.append(-np.inf if or_less else total)


class SearchError(ValueError):
    """No choice fits the memory, or the solver found none in time."""


class Problem:
    """The nodes and edges of a graph on a mesh."""

    def __init__(self, graph: Graph, shardings: Shardings, machine: Machine):
        self.graph, self.shardings, self.machine = graph, shardings, machine
        self.mesh = shardings.mesh
        self.nodes: list[Alternatives] = []
        self.edges: list[Edge] = []
        self.shared: list[SharedConversion] = []
        self.places: dict[Value, int] = {}
        self._tables: dict[tuple, Parts] = {}
        parts: list[Parts] = []         # of each edge
        for value in (*graph.inputs.values(), *graph.constants):
            self.add_input(value)
        for operation in graph.operations:
            parts += self.add_operation(operation)
        self.share(parts)

    def add_input(self, value: Value) -> None:
        """Add an input, in any layout; a parameter is kept with its gradient and its states."""
        homes = list(layouts(value, self.mesh))
        copies = COPIES if value.is_parameter else 1
        self.add(Alternatives(value, homes, np.zeros(len(homes)), np.array(
            [copies * local_bytes(value, home, self.mesh) for home in homes]), []))

    def add_operation(self, operation: Operation) -> list["Parts"]:
        """Add an operation, and an edge from each operand; return the edges' conversions."""
        rule = self.shardings.rules[operation]
        choices = choices_of(operation, rule, self.mesh, self.machine)
        self.add(Alternatives(operation.result, [each.home for each in choices],
                              np.array([each.seconds for each in choices]),
                              np.array([each.num_bytes for each in choices]), choices))
        return [self.add_edge(value, operation.result, index)
                for index, value in enumerate(operation.inputs) if isinstance(value, Value)]

    def add(self, node: Alternatives) -> None:
        """Append a node."""
        self.places[node.value] = len(self.nodes)
        self.nodes.append(node)

    def add_edge(self, value: Value, result: Value, index: int) -> "Parts":
        """Add an edge from a value to operand `index` of an operation; return its conversions.

        The edge has the seconds from each layout of `value` to what each choice needs.
        """
        source, user = self.places[value], self.places[result]
        homes = self.nodes[source].homes
        wanted = [each.uses[index] for each in self.nodes[user].choices]
        key = (value.shape, str(value.dtype), value.sections, value.needs_grad, tuple(homes),
               tuple(wanted))
        if key not in self._tables:             # the blocks of a model are alike
            found: Parts = {}
            known = {(home, use): conversion_parts(value, ShardedLayout(home), use, self.machine,
                                                   self.mesh)
                     for home in homes for use in set(wanted)}
            for i, home in enumerate(homes):
                for j, use in enumerate(wanted):
                    for part, seconds in known[home, use].items():
                        pairs = found.setdefault(part, (seconds, np.zeros(
                            (len(homes), len(wanted)), bool)))[1]
                        pairs[i, j] = True
            self._tables[key] = found
        parts = self._tables[key]
        total = sum([seconds * pairs for seconds, pairs in parts.values()],
                    start=np.zeros((len(homes), len(wanted))))
        self.edges.append(Edge(source, user, total))
        return parts

    def share(self, parts: Sequence["Parts"]) -> None:
        """Make each conversion that several edges from one value need a SharedConversion."""
        found: dict[tuple, dict[int, np.ndarray]] = {}
        for number, edge in enumerate(self.edges):
            for part, (_, pairs) in parts[number].items():
                found.setdefault((edge.source, part), {})[number] = pairs
        for (_, part), needed in found.items():
            if len(needed) > 1:
                seconds = parts[next(iter(needed))][part][0]
                self.shared.append(SharedConversion(seconds, needed))
                for number, pairs in needed.items():
                    self.edges[number].seconds[pairs] -= seconds

    def solve(self, memory: float | None = None, time_limit: float = 60.0) -> list[int]:
        """The alternative of each node.  Raises SearchError if none fits `memory` bytes."""
        optimize, sparse = import_scipy()
        ends = np.cumsum([0, *[len(node.homes) for node in self.nodes]])
        of_node = [np.arange(a, b) for a, b in zip(ends, ends[1:])]         # variables s_i
        cost = np.concatenate([node.seconds for node in self.nodes]
                              + [edge.seconds.ravel() for edge in self.edges]
                              + [np.array([each.seconds for each in self.shared])])
        scale = 1 / max(cost.max(), 1e-30)      # seconds are small numbers for a solver
        equations = self.equations(of_node)
        # HiGHS takes indices of 32 bits, and SciPy 1.13 does not convert longer ones
        at = np.array([equations.rows, equations.columns], np.int32)
        matrix = sparse.csr_array((equations.values, (at[0], at[1])),
                                  shape=(len(equations.sums), len(cost)))
        constraints = [optimize.LinearConstraint(matrix, equations.least, equations.sums)]
        if memory is not None:
            num_bytes = np.zeros(len(cost))
            num_bytes[:ends[-1]] = np.concatenate([node.num_bytes for node in self.nodes])
            constraints.append(optimize.LinearConstraint(num_bytes[None] / memory, -np.inf, 1.0))
        is_whole = np.zeros(len(cost))
        is_whole[:ends[-1]] = 1         # pairs follow from the one-hots of their nodes
        result = optimize.milp(
            cost * scale, constraints=constraints, integrality=is_whole,
            bounds=optimize.Bounds(0, 1), options={"time_limit": time_limit, "mip_rel_gap": 0})
        if result.x is None:
            least = sum(node.num_bytes.min() for node in self.nodes)
            raise SearchError(f"no sharding was found within {time_limit:g} s: {result.message}"
                              if memory is None or least <= memory else
                              f"no sharding fits {memory:.3g} bytes on a rank: the smallest takes "
                              f"{least:.3g}; give more memory, or a larger mesh")
        return [int(np.argmax(result.x[variables])) for variables in of_node]

    def equations(self, of_node: Sequence[np.ndarray]) -> Equations:
        """Each node has one alternative; each edge has the pair of its two nodes' alternatives.

        A shared conversion is made if any edge has a pair that needs it.
        """
        equations, start = Equations(), of_node[-1][-1] + 1
        of_edge: list[np.ndarray] = []
        for variables in of_node:
            equations.add(variables, total=1.0)
        for edge in self.edges:
            pairs = start + np.arange(edge.seconds.size).reshape(edge.seconds.shape)    # e_ij
            for i, variable in enumerate(of_node[edge.source]):
                equations.add(pairs[i], equal_to=variable)
            for j, variable in enumerate(of_node[edge.user]):
                equations.add(pairs[:, j], equal_to=variable)
            of_edge.append(pairs)
            start += edge.seconds.size
        for number, each in enumerate(self.shared):
            for edge_number, needed in each.needed.items():
                equations.add(of_edge[edge_number][needed], equal_to=start + number, or_less=True)
        return equations

    def seconds(self, chosen: Sequence[int]) -> float:
        """The objective of a choice."""
        return float(sum(node.seconds[i] for node, i in zip(self.nodes, chosen)) + sum(
            edge.seconds[chosen[edge.source], chosen[edge.user]] for edge in self.edges) + sum(
            each.seconds for each in self.shared if any(
                pairs[chosen[self.edges[number].source], chosen[self.edges[number].user]]
                for number, pairs in each.needed.items())))

    def plan(self, chosen: Sequence[int]) -> ShardingPlan:
        """The partitioned program of a choice."""
        for node, i in zip(self.nodes, chosen):
            self.shardings.dims[node.value] = list(node.homes[i])
            if node.choices:
                assert node.value.operation is not None
                self.shardings.cuts[node.value.operation] = node.choices[i].cut
        return ShardingPlan(self.graph, self.shardings, partition(self.graph, self.shardings))


def make_problem(function: Callable, *inputs: Any, mesh: Mapping[str, int],
                 model: Module | None = None, names: Sequence[str] = (),
                 machine: Machine | None = None, dtype: Any = np.float32) -> Problem:
    """The problem of function(*inputs), or of function(model, *inputs), traced as by `plan`."""
    graph = trace(function, *inputs, model=None if model is None else shape_only(model, dtype),
                  names=names)
    return Problem(graph, all_open(graph, mesh), machine or Machine())


def search(function: Callable, *inputs: Any, memory: float | None = None,
           beside: Sequence[ShardingPlan] = (), **options: Any) -> ShardingPlan:
    """The plan of the cheapest sharding of a program that fits `memory` bytes on each rank.

    If one of the plans `beside` fits and is cheaper, it is returned instead.  `options` go to
    `make_problem`.  Raises SearchError if nothing fits.
    """
    problem = make_problem(function, *inputs, **options)
    fitting = [each for each in beside if memory is None or memory_bytes(each.program) <= memory]
    return min([problem.plan(problem.solve(memory)), *fitting],
               key=lambda each: program_seconds(each.program, problem.machine))


def import_scipy() -> tuple[Any, Any]:
    """scipy.optimize and scipy.sparse.  Raises ImportError that says how to install SciPy."""
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise ImportError("automatic sharding needs SciPy's solver: pip install 'minipar[search]'"
                          ) from error
    return optimize, sparse
