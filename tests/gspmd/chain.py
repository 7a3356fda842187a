"""Dynamic programming over a chain of operations: the exact optimum without a solver.

    x ──▶ linear ──▶ relu ──▶ linear ──▶ loss       best[j] = min over i of best[i] + R_ij, + c_j
          w₁, b₁              w₂, b₂                a weight takes the layout that is best for j

Each result is used by the next operation alone, so the choices before an operation matter only
through the layout of its operand.  It checks the integer program, and is faster where it fits.
"""

import numpy as np

from minipar.gspmd.search.ilp import Edge, Problem, SearchError


def solve_chain(problem: Problem) -> list[int]:
    """The alternative of each node.  Raises SearchError for a graph that is no chain."""
    chosen = [0] * len(problem.nodes)
    incoming: dict[int, list[Edge]] = {}
    for edge in problem.edges:
        incoming.setdefault(edge.user, []).append(edge)
    best: dict[int, np.ndarray] = {}            # of each operation, by alternative
    back: dict[int, dict[int, np.ndarray]] = {}     # operation → operand → its best alternative
    for place, node in enumerate(problem.nodes):
        if node.value.num_uses > 1:
            raise SearchError(f"{node.value.name} is used {node.value.num_uses} times: the program "
                              "is no chain, search it with the integer program")
        total = node.seconds.copy()
        back[place] = {}
        for edge in incoming.get(place, []):
            costs = best[edge.source][:, None] + edge.seconds       # (operand's, this one's)
            back[place][edge.source] = costs.argmin(axis=0)
            total += costs.min(axis=0)
        best[place] = total
    last = len(problem.nodes) - 1
    chosen[last] = int(best[last].argmin())
    for place in reversed(range(len(problem.nodes))):
        for source, choice in back[place].items():
            chosen[source] = int(choice[chosen[place]])
    return chosen
