"""An all-reduce over several nodes in which every rank has a part: rings within, rings between.

    node 0   0 ══ 1 ══ 2      1. reduce-scatter ══ within each node: rank i has piece i of its sum
             │    │    │      2. all-reduce │ between the nodes: ranks number i sum their piece
    node 1   3 ══ 4 ══ 5      3. all-gather ══ within each node

Each of N nodes sends 2n(N-1)/N bytes over the slow links, as in `hierarchical`.  But every rank
sends its share of them, where there the first one sends all; and within a node only pieces travel.
With p/N ranks on each node it takes 2(p/N - 1) + 2(N - 1) rounds and 2n(p-1)/p bytes, a ring's.

The 2D-torus all-reduce of Mikami et al. 2018 (arXiv 1811.05233), section 3.2.
"""

from itertools import groupby

from ...backend import Array
from ..chunks import chunk_bounds, find_operator
from ..communicator import Communicator
from ..subgroup import Part
from .all_gather import ring as ring_all_gather
from .all_reduce import ring as ring_all_reduce
from .reduce_scatter import ring as ring_reduce_scatter


def torus(comm: Communicator, flat: Array, op: str, ranks_per_node: int | None = None) -> None:
    """Reduce-scatter within each node, all-reduce piece by piece between nodes, all-gather within.

    A node is `ranks_per_node` consecutive ranks (the last may have fewer); without that, a run of
    consecutive ranks on one node of the communicator.  There are as many pieces as the smallest
    node has ranks: in larger ones the other ranks have an empty piece.
    """
    nodes = nodes_of(comm, ranks_per_node)
    row = Part(comm, next(node for node in nodes if comm.rank in node))
    num_pieces = min(len(node) for node in nodes)
    bounds = chunk_bounds(flat.size, num_pieces) + [(flat.size,) * 2] * (row.size - num_pieces)
    chunks = [flat[start:stop] for start, stop in bounds]
    ring_reduce_scatter(row, chunks, find_operator(op))
    if row.rank < num_pieces:
        column = Part(comm, [node[row.rank] for node in nodes])
        ring_all_reduce(column, chunks[row.rank], op)
    ring_all_gather(row, chunks)


def nodes_of(comm: Communicator, ranks_per_node: int | None = None) -> list[list[int]]:
    """The ranks of each node, see `torus`.  Raises ValueError for `ranks_per_node` below 1."""
    if ranks_per_node is not None and ranks_per_node < 1:
        raise ValueError(f"ranks_per_node={ranks_per_node}: give at least 1")
    node_of = comm.node_of if ranks_per_node is None else (lambda rank: rank // ranks_per_node)
    return [list(ranks) for _, ranks in groupby(range(comm.size), key=node_of)]
