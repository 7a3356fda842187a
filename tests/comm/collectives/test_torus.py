"""The all-reduce by torus: a ring's bytes, in fewer rounds, and from every rank between nodes."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.cost import predict
from minipar.comm.simulated.links import Link, Links


def test_it_has_the_bytes_of_a_ring_in_fewer_rounds():
    for num_nodes, per_node in ((2, 2), (4, 6), (3, 5), (8, 4), (1, 7), (7, 1)):
        p = num_nodes * per_node
        cost = predict("all_reduce", "torus", p, 3 * p, itemsize=1, ranks_per_node=per_node)
        assert cost.rounds == 2 * (per_node - 1) + 2 * (num_nodes - 1)
        assert cost.num_bytes == 2 * 3 * p * (p - 1) / p
        assert cost.reduced == 3 * p * (p - 1) / p


def test_it_sends_little_between_nodes_and_from_every_rank():
    cluster = Cluster(nodes=3, devices_per_node=4, trace=True)
    results, _ = cluster.run(
        lambda comm: all_reduce(comm, np.full(12, comm.rank), algorithm="torus"))
    assert all((result == 66).all() for result in results)
    between = [m for m in cluster.trace.select() if m.source // 4 != m.dest // 4]
    assert {m.source for m in between} == set(range(12))
    assert all(m.source % 4 == m.dest % 4 for m in between)
    assert sum(m.num_bytes for m in between) == 3 * 2 * 96 * 2 // 3         # 2n(N - 1)/N a node


@pytest.mark.parametrize("per_node", [4, 6])
def test_long_arrays_between_slow_nodes_take_it(per_node):
    """Between nodes each rank sends a piece, where in hierarchical one rank sends all of n."""
    cluster = {"nodes": 4, "devices_per_node": per_node,
               "links": Links(Link(1e-6, 1e11), Link(1e-5, 1e10))}
    times = {name: Cluster(**cluster).run(
        lambda comm, name=name: all_reduce(comm, np.ones(1 << 17), algorithm=name))[1]
        for name in ("ring", "recursive_doubling", "rabenseifner", "hierarchical", "torus", "auto")}
    assert times["auto"] == times["torus"] < 0.5 * times["hierarchical"]
    assert times["torus"] == min(times.values())
