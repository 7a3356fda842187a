"""Thousands of ranks, unequal links and delays by seed, for every algorithm."""

from functools import partial

import numpy as np
import pytest

from minipar.comm import Cluster, collectives
from minipar.comm.collectives import all_reduce, barrier
from minipar.comm.simulated.links import Link, Links
from tests.support.operation_table import ALL, NAMES, pieces

each = pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)
FAST, SLOW = Link(1e-6, 1e11), Link(1e-5, 1e10)


def sum_on(cluster: Cluster, n: int, algorithm: str) -> float:
    """All-reduce rank numbers, check every result, return the virtual seconds."""
    p = cluster.num_ranks
    results, seconds = cluster.run(
        lambda comm: all_reduce(comm, comm.rank + np.arange(n), algorithm=algorithm))
    right = p * (p - 1) // 2 + p * np.arange(n)
    assert all(np.array_equal(result, right) for result in results)
    return seconds


@pytest.mark.slow
def test_recursive_doubling_on_16384_ranks():
    cluster = Cluster(1 << 14, latency=1.0, bandwidth=32.0)
    assert sum_on(cluster, 4, "recursive_doubling") == 14 * (1 + 32 / 32)


@pytest.mark.slow
def test_a_ring_on_1024_ranks():
    cluster = Cluster(1 << 10, latency=1.0, bandwidth=8.0)
    assert sum_on(cluster, 1 << 10, "ring") == 2 * 1023 * (1 + 1)


@pytest.mark.parametrize("nodes", [32, pytest.param(256, marks=pytest.mark.slow)])
def test_hierarchical_on_nodes_of_8_ranks_beats_who_does_not_know_of_nodes(nodes):
    times = {algorithm: sum_on(Cluster(nodes=nodes, devices_per_node=8, links=Links(FAST, SLOW)),
                               64, algorithm) for algorithm in ("hierarchical", "tree")}
    assert times["hierarchical"] < times["tree"]


@pytest.mark.slow
def test_hierarchical_on_4096_ranks():            # each looks up the node of each: p² of them
    within, between = Link(1.0, 32.0), Link(100.0, 32.0)
    cluster = Cluster(nodes=1 << 9, devices_per_node=8, links=Links(within, between))
    seconds = sum_on(cluster, 4, "hierarchical")
    # 3 rounds up and 3 down within a node; between nodes log₂ 512 rounds of halving, of doubling.
    assert 2 * 3 * 2 + 2 * 9 * 100 < seconds < 2 * 3 * 2 + 2 * 9 * 101


def on_floats(operation: str, algorithm: str, p: int, comm):
    """A collective on numbers whose sum depends on its order."""
    if operation == "barrier":
        return barrier(comm, algorithm)
    mine = np.random.default_rng(comm.rank).standard_normal(6 * p).astype(np.float32)
    if operation in ("gather", "all_gather"):
        mine = pieces(mine, p)[comm.rank]
    return getattr(collectives, operation)(comm, mine, algorithm=algorithm)


def check_seeds(operation: str, algorithm: str, p: int, seeds: range) -> None:
    body = partial(on_floats, operation, algorithm, p)

    def bits(results: list) -> list:
        return [None if result is None else result.tobytes() for result in results]

    draw = np.random.default_rng(p)
    special = {(s, (s + 1) % p): Link(*draw.uniform(1e-6, 1e-3, 2) * (1, 1e9)) for s in range(p)}

    def cluster_with(eager: int = 0, **delays) -> Cluster:
        return Cluster(nodes=p, devices_per_node=1, eager=eager,
                       links=Links(special=special, **delays))
    right, times = bits(cluster_with().run(body)[0]), set()
    for seed in seeds:
        cluster = cluster_with(eager=seed % 2 * 64, delay=1e-4, seed=seed)
        results, seconds = cluster.run(body)
        assert bits(results) == right, (operation, algorithm, seed)
        times.add(seconds)
    assert len(times) == len(seeds)             # no two seeds are alike


@each
@pytest.mark.one_in(3)
def test_fifty_seeds_of_delays_on_unequal_links_give_the_same_bits(operation, algorithm):
    check_seeds(operation, algorithm, 5, range(50))


@pytest.mark.slow
@each
def test_more_ranks_and_fifty_seeds(operation, algorithm):
    for p in (2, 3, 8, 13, 16):
        check_seeds(operation, algorithm, p, range(50))
