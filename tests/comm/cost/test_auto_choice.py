""""auto" takes the fastest algorithm on the given links, the same on all ranks."""

from importlib import import_module
from math import inf

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import all_reduce, gather_object
from minipar.comm.cost import Network, candidates, choose, crossings, seconds_on
from minipar.comm.cost.alpha_beta import seconds
from minipar.comm.cost.calibration import Calibration, CalibrationTable
from minipar.comm.cost.choose import network_of, pick
from minipar.comm.cost.network import closed_parts, run_lengths
from minipar.comm.simulated.links import Link, Links
from minipar.comm.simulated.replay import replay
from minipar.testing import worlds
from tests.support.operation_table import call

FAST = Link(1e-6, 1e11)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all",
              "scan", "scatter", "gather")


def slower(times: float) -> Links:
    return Links(FAST, Link(FAST.latency * times, FAST.bandwidth / times))


@pytest.mark.parametrize(("nodes", "per_node", "times"), [
    (1, 8, 1), (8, 1, 20), (2, 4, 10), (2, 3, 50),
    *(pytest.param(*larger, marks=pytest.mark.slow)
      for larger in ((4, 3, 10), (3, 4, 50), (5, 3, 3)))])
@pytest.mark.one_in(2)
def test_the_choice_is_that_of_brute_force(nodes, per_node, times):
    """Each algorithm's messages are traced on one cluster and played on the other."""
    p, there = nodes * per_node, {"nodes": nodes, "devices_per_node": per_node}
    network = Cluster(**there, links=slower(times)).run(network_of)[0][0]
    assert network == Network(FAST, slower(times).between, inf, (per_node,) * nodes)
    for operation in OPERATIONS:
        for n in (16 * p, 512 * p, 8192 * p):     # pieces of whole numbers
            played = {}
            for name in candidates(operation, network):
                here = Cluster(p, devices_per_node=per_node, trace="replay")
                here.run(lambda comm, o=operation, a=name, n=n: call(o, a, comm, n, np.float64))
                played[name] = replay(here.trace, Cluster(**there, links=slower(times)))
            predicted = {name: seconds_on(operation, name, p, 8 * n, network) for name in played}
            assert played == pytest.approx(predicted, rel=1e-6)
            name = choose(operation, p, 8 * n, network)
            assert played[name] <= min(played.values()) * (1 + 1e-6), (operation, n)
            again = Cluster(**there, links=slower(times))
            _, by_auto = again.run(lambda comm, o=operation, n=n: call(o, "auto", comm, n,
                                                                       np.float64))
            assert by_auto == pytest.approx(played[name], rel=1e-9)


def test_hierarchical_wins_where_nodes_are_no_powers_of_two():
    slow = Link(1e-5, 1e10)
    assert choose("all_reduce", 24, 1 << 17, Network(FAST, slow, inf, (6,) * 4)) == "hierarchical"
    assert choose("all_reduce", 24, 1 << 17, Network(FAST, FAST, inf, (6,) * 4)) != "hierarchical"
    assert choose("all_reduce", 16, 1 << 17, Network(FAST, slow, inf, (4,) * 4)) != "hierarchical"
    assert choose("all_reduce", 24, 1 << 22, Network(FAST, slow, inf, (6,) * 4)) == "torus"
    for runs in ((), (24,), (1,) * 24):
        names = candidates("all_reduce", Network(FAST, slow, inf, runs))
        assert not {"hierarchical", "torus"} & set(names)


def test_a_special_link_counts_for_those_who_use_it():
    slow = Link(1e-3, 1e8)
    links = Links(FAST, Link(1e-5, 1e10), special={(0, 1): slow, (5, 2): slow})

    def body(comm):
        return (network_of(comm), network_of(comm.split(comm.rank % 2)),
                network_of(comm.split(comm.rank // 3)))
    seen = Cluster(nodes=2, devices_per_node=3, links=links).run(body)[0]
    assert {world for world, _, _ in seen} == {Network(slow, slow, inf, (3, 3))}
    assert seen[0][1] == Network(FAST, links.between, inf, (2, 1))
    assert seen[1][1] == Network(FAST, links.between, inf, (1, 2))
    assert seen[0][2] == Network(slow, links.between, inf, (3,))
    assert seen[5][2] == Network(FAST, links.between, inf, (3,))


def test_random_delays_are_part_of_the_latency():
    links = Links(FAST, FAST, delay=1e-4, seed=1)
    network = Cluster(2, links=links).run(network_of)[0][0]
    assert network.within == Link(FAST.latency + 1e-4, FAST.bandwidth)


@pytest.mark.parametrize("algorithm", sorted({*ALGORITHMS["all_reduce"]} - {"blocked_ring"}))
def test_closed_forms_and_rounds_agree(algorithm):
    """Closed forms give the cost of more ranks than MOST_BY_ROUNDS."""
    network = Network(FAST, Link(2e-5, 5e9), 3e10, (8,) * 8)
    closed = sum(seconds(cost, *link, network.combining)
                 for cost, link in closed_parts("all_reduce", algorithm, 64, 1 << 16, network))
    assert closed == pytest.approx(seconds_on("all_reduce", algorithm, 64, 1 << 16, network),
                                   rel=1e-2 if algorithm == "ring" else 1e-9)
    for runs in ((128,) * 128, (100,) * 5, (1,) * 100, (50, 60), ()):
        p = sum(runs) or 90
        assert seconds_on("all_reduce", algorithm, p, 1 << 16, network._replace(runs=runs)) > 0


@worlds(1, 2, 3, 5, 7, 12, mpi=(3, 4))
def test_all_ranks_choose_the_same(world):
    """Also in sub-communicators of every shape; another choice on one rank would hang."""
    def body(comm):
        p = comm.size
        parts = [comm, comm.split(comm.rank % 2), comm.split(comm.rank // 3, key=-comm.rank),
                 comm.split(0, key=(comm.rank * 5) % 7), comm.split(int(comm.rank > 0))]
        for part in parts:
            names = [part.choose(operation, num_bytes) for operation in OPERATIONS
                     for num_bytes in (0, 8, 4096, 1 << 17, 1 << 22)]
            everyone = gather_object(part, names)
            assert part.rank or everyone == [names] * part.size
            for n in (1, 5000, 200000):
                assert all_reduce(part, np.ones(n))[-1] == part.size
        return p
    world.run(body)


def test_all_ranks_choose_the_same_on_uneven_nodes():
    def body(comm):
        shapes = [comm.split(comm.rank % 7 > 0), comm.split(comm.rank > 4),
                  comm.split(comm.rank % 3 > 0, key=comm.rank * 3 % 7)]
        chosen = []
        for ranks in (comm, *shapes):
            for n in (10, 3000, 100000):
                chosen.append((ranks.group, n, ranks.choose("all_reduce", 8 * n)))
                assert all_reduce(ranks, np.ones(n))[0] == ranks.size
        return chosen
    for nodes, per_node in ((3, 3), (2, 5), (4, 3)):
        cluster = Cluster(nodes=nodes, devices_per_node=per_node, links=slower(20))
        seen = {}
        for chosen in cluster.run(body)[0]:
            for group, n, name in chosen:
                assert seen.setdefault((group, n), name) == name
        assert len(set(seen.values())) > 1


def test_it_is_worked_out_once_for_all_ranks(monkeypatch):
    asked = []

    def counting(*args):
        asked.append(args)
        return choose(*args)
    monkeypatch.setattr(import_module("minipar.comm.cost.choose"), "choose", counting)

    def body(comm):
        for _ in range(3):
            all_reduce(comm, np.ones(4))
            all_reduce(comm, np.ones(9))
    Cluster(200).run(body)
    assert [num_bytes for _, _, num_bytes, _ in asked] == [32, 72]


def real_ranks(*tables: CalibrationTable, size: int = 4, nodes: int = 1):
    """The first arguments of `pick` for real ranks."""
    return (Calibration(FAST, FAST, inf, tables), size,
            Network(FAST, FAST, inf, run_lengths([rank * nodes // size for rank in range(size)])))


def test_a_measured_table_decides_and_what_cannot_run_is_passed_over():
    table = CalibrationTable(3, 1, {"all_reduce": ((0, ("auto", "unheard_of", "window", "tree")),
                                                   (1000, ("ring", "tree")))})
    for size, num_bytes, name in ((3, 999, "window"), (4, 999, "tree"), (4, 1000, "ring")):
        available = {"ring", "tree", "window"} if size < 4 else {"ring", "tree"}
        assert pick(*real_ranks(table, size=size), available, "all_reduce", num_bytes) == name


def test_without_a_table_the_model_decides():
    only_unknown = CalibrationTable(2, 1, {"all_reduce": ((0, ("unheard_of",)),)})
    for known, p, network in (real_ranks(only_unknown), real_ranks(nodes=2)):
        assert pick(known, p, network, ALGORITHMS["all_reduce"], "all_reduce", 64) == \
            choose("all_reduce", 4, 64, network)


def test_crossings():
    def best(num_bytes):
        return "a" if num_bytes < 1000 else "b" if num_bytes < 70000 else "c"
    assert crossings(best, [1, 100, 10**6]) == [(1000, "a", "b"), (70000, "b", "c")]
    assert crossings(best, [2000, 3000]) == []
