"""Links within and between nodes, random delays; which node a rank is on."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from minipar.comm.simulated.links import Link, Links
from minipar.testing.worlds import worlds

FAST, SLOW = Link(1.0, 1000.0), Link(10.0, 100.0)


def seconds_of_a_message(cluster: Cluster, source: int, dest: int, num_bytes: int) -> float:
    def main(comm):
        if comm.rank == source:
            comm.send(np.zeros(num_bytes, np.int8), dest)
        if comm.rank == dest:
            comm.recv(np.zeros(num_bytes, np.int8), source)
    return cluster.run(main)[1]


def test_a_message_takes_what_its_link_says():
    cluster = Cluster(nodes=2, devices_per_node=3, links=Links(within=FAST, between=SLOW,
                                                               special={(0, 1): Link(2, 500)}))
    for source in range(6):
        for dest in set(range(6)) - {source}:
            expected = 1 + 500 / 1000 if source // 3 == dest // 3 else 10 + 500 / 100
            if (source, dest) == (0, 1):
                expected = 2 + 500 / 500
            assert seconds_of_a_message(cluster, source, dest, 500) == expected


def test_links_not_named_are_the_clusters_own():
    cluster = Cluster(nodes=2, devices_per_node=1, latency=3, bandwidth=50, links=Links(FAST))
    assert seconds_of_a_message(cluster, 0, 1, 100) == 3 + 100 / 50


def test_equal_links_give_the_times_of_a_cluster_without_links():
    def main(comm):
        all_reduce(comm, np.ones(777))
        return comm.now()
    plain = Cluster(6, latency=1e-6, bandwidth=1e9)
    linked = Cluster(6, latency=5, bandwidth=5, links=Links(Link(1e-6, 1e9), Link(1e-6, 1e9)))
    np.testing.assert_allclose(plain.run(main)[0], linked.run(main)[0], rtol=1e-12)


def test_a_ring_runs_at_the_speed_of_its_slowest_link():
    """2(p-1) rounds, each as long as a chunk over the slow link takes."""
    cluster = Cluster(nodes=2, devices_per_node=4, links=Links(Link(0, 1e9), Link(0, 100)))
    mine = np.ones(8000, np.int8)
    _, seconds = cluster.run(lambda comm: all_reduce(comm, mine, algorithm="ring"))
    assert seconds == pytest.approx(14 * 1000 / 100, rel=1e-3)


@worlds(1, 4, mpi=(4,))
def test_ranks_of_one_machine_are_on_one_node(world):
    def body(comm):
        assert comm.node == 0 and {comm.node_of(rank) for rank in range(comm.size)} == {0}
    world.run(body)


def test_nodes_are_known_on_every_communicator():
    def main(comm):
        assert [comm.node_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
        part = comm.split(comm.rank % 2, key=-comm.rank)
        assert [part.node_of(rank) for rank in range(3)] == [2, 1, 0]
        assert part.node == comm.node == comm.rank // 2
        assert comm.split(comm.node).size == 2
    Cluster(6, devices_per_node=2).run(main)
    Cluster(6, nodes=3).run(main)
    Cluster(nodes=3, devices_per_node=2).run(main)


def test_a_number_of_ranks_that_does_not_fill_the_nodes_is_refused():
    for shape in ({"nodes": 2}, {"devices_per_node": 2}, {"nodes": 4, "devices_per_node": 2}):
        with pytest.raises(ValueError, match="do not fill") as caught:
            Cluster(7, **shape)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="at least 1 rank"):
        Cluster(0)


def everything(comm):
    """The results of all collectives on numbers whose sum depends on its order."""
    mine = np.random.default_rng(comm.rank).normal(size=101).astype(np.float32)
    return [all_reduce(comm, mine), reduce_scatter(comm, mine), all_gather(comm, mine),
            broadcast(comm, mine, root=2),
            all_to_all(comm, np.resize(mine, (comm.size, 9)))]


def check_delays(num_ranks: int, seeds: range) -> None:
    expected = Cluster(num_ranks).run(everything)[0]
    times = set()
    for seed in seeds:
        for eager in (0, 1 << 20):
            cluster = Cluster(num_ranks, eager=eager, links=Links(delay=1e-4, seed=seed))
            results, seconds = cluster.run(everything)
            times.add(seconds)
            for ours, theirs in zip(results, expected):
                for a, b in zip(ours, theirs):
                    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert len(times) > len(seeds)          # the delays were there


@pytest.mark.parametrize("num_ranks", [3, 5, 8])
def test_results_are_bitwise_the_same_under_random_delays(num_ranks):
    check_delays(num_ranks, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [3, 4, 5, 7, 8, 16])
def test_results_are_bitwise_the_same_under_fifty_seeds(num_ranks):
    check_delays(num_ranks, range(50))


def test_a_seed_says_the_whole_run():
    def seconds(seed):
        cluster = Cluster(5, trace=True, links=Links(delay=1e-3, seed=seed))
        runs = [(cluster.run(everything)[1], list(cluster.trace.messages)) for _ in range(2)]
        assert runs[0] == runs[1]
        return runs[0][0]
    assert seconds(1) == seconds(1) != seconds(2)


def test_delays_have_the_mean_that_was_asked_for():
    def main(comm):
        for _ in range(4000):
            if comm.rank == 0:
                comm.send(np.zeros(1), 1)
            else:
                comm.recv(np.zeros(1), 0)
    links = Links(Link(0.0, float("inf")), delay=0.5, seed=3)
    assert Cluster(2, links=links).run(main)[1] == pytest.approx(2000, rel=0.06)
