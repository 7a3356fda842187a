"""Exercises rabenseifner, hierarchical_all_reduce, recursive_doubling_scan, bruck_all_to_all."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_to_all, exscan, scan
from minipar.comm.collectives.all_reduce import hierarchical, rabenseifner
from tests.school.exercises.test_exercise_collectives import SIZES, data
from tests.school.exercises.test_exercise_spreading import counting_rounds, log2_up, same_rounds

# All-reduce

def check_all_reduce(results, n, what, op=np.sum):
    expected = op([data(rank, n) for rank in range(len(results))], axis=0)
    for rank, result in enumerate(results):
        assert np.array_equal(result, expected), f"{what}: rank {rank} has {result}, not {expected}"


def run_rabenseifner(cluster, n, op="sum"):
    def main(comm):
        flat = data(comm.rank, n)
        rabenseifner(comm, flat, op)
        return flat
    return cluster.run(main)


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
@pytest.mark.parametrize("n", [16, 11, 2])
def test_rabenseifner_gives_everyone_the_sum(p, n):
    check_all_reduce(run_rabenseifner(Cluster(p), n)[0], n, f"{p} ranks, {n} numbers")


def test_rabenseifner_with_other_operators():
    check_all_reduce(run_rabenseifner(Cluster(5), 9, "max")[0], 9, "op='max'", np.max)
    check_all_reduce(run_rabenseifner(Cluster(4), 9, "min")[0], 9, "op='min'", np.min)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_rabenseifner_takes_2_log2_p_rounds_and_the_bytes_of_a_ring(p):
    cluster = counting_rounds(p)
    same_rounds(run_rabenseifner(cluster, 2 * p)[1], 2 * log2_up(p), p)
    for rank in range(p):
        sent = cluster.trace.bytes_sent(rank)
        assert sent == 32 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not 2n(p-1)/p"


def run_hierarchical(cluster, n, op="sum", ranks_per_node=None):
    def main(comm):
        flat = data(comm.rank, n)
        hierarchical(comm, flat, op, ranks_per_node)
        return flat
    return cluster.run(main)[0]


@pytest.mark.parametrize("nodes, per_node", [(1, 4), (2, 1), (2, 3), (3, 4), (5, 2)])
def test_hierarchical_gives_everyone_the_sum(nodes, per_node):
    cluster = Cluster(nodes=nodes, devices_per_node=per_node)
    what = f"{nodes} nodes of {per_node} ranks"
    check_all_reduce(run_hierarchical(cluster, 7), 7, what)
    check_all_reduce(run_hierarchical(cluster, 7, "max"), 7, f"{what}, op='max'", np.max)


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 8])
def test_hierarchical_by_ranks_per_node(ranks_per_node):
    check_all_reduce(run_hierarchical(Cluster(7), 5, "sum", ranks_per_node), 5,
                     f"7 ranks, ranks_per_node={ranks_per_node}")


def test_only_first_ranks_talk_to_another_node():
    cluster = Cluster(nodes=3, devices_per_node=4, trace=True)
    run_hierarchical(cluster, 8)
    between = {(m.source, m.dest) for m in cluster.trace.select() if m.source // 4 != m.dest // 4}
    others = {pair for pair in between if pair[0] % 4 or pair[1] % 4}
    assert between, "no message went to another node"
    assert not others, f"messages (source, dest) {sorted(others)} are between nodes"


# Scan

@pytest.mark.parametrize("p", [*SIZES, 6, 7])
def test_scan_sums_this_rank_and_those_before(p):
    results, _ = Cluster(p).run(
        lambda comm: scan(comm, data(comm.rank, 4), algorithm="recursive_doubling"))
    for rank, result in enumerate(results):
        right = sum(data(r, 4) for r in range(rank + 1))
        assert np.array_equal(result, right), f"rank {rank} of {p} has {result}, not {right}"


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
@pytest.mark.parametrize("op, reduced", [("sum", np.sum), ("max", np.max)])
def test_exscan_sums_the_ranks_before(p, op, reduced):
    results, _ = Cluster(p).run(
        lambda comm: exscan(comm, data(comm.rank, 4), op, "recursive_doubling"))
    for rank, result in enumerate(results[1:], 1):
        right = reduced([data(r, 4) for r in range(rank)], axis=0)
        assert np.array_equal(result, right), \
            f"`before` on rank {rank} of {p}, op={op!r}, is {result}, not {right}"


@pytest.mark.parametrize("p", SIZES)
def test_scan_takes_log2_p_rounds(p):
    _, seconds = counting_rounds(p).run(
        lambda comm: scan(comm, data(comm.rank, 4), algorithm="recursive_doubling"))
    same_rounds(seconds, log2_up(p), p)


# All-to-all

def run_all_to_all(cluster, table):
    def piece(source, dest):
        return data(source, 5 * dest + 4)[:table[source][dest]]

    def main(comm):
        mine = np.concatenate([piece(comm.rank, dest) for dest in range(comm.size)])
        return all_to_all(comm, mine, algorithm="bruck", counts=table)
    results, seconds = cluster.run(main)
    for rank, result in enumerate(results):
        right = np.concatenate([piece(source, rank) for source in range(len(table))])
        assert np.array_equal(result, right), \
            f"{len(table)} ranks: rank {rank} has {result}, not {right}"
    return seconds


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
def test_bruck_all_to_all_exchanges_all_pieces(p):
    run_all_to_all(Cluster(p), [[3] * p] * p)
    equal, _ = Cluster(p).run(lambda comm: all_to_all(
        comm, np.arange(2 * p) + 100 * comm.rank, algorithm="bruck"))
    for rank, result in enumerate(equal):
        right = [2 * rank + i + 100 * source for source in range(p) for i in (0, 1)]
        assert result.tolist() == right, f"without counts rank {rank} of {p} has {result}"


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
def test_bruck_all_to_all_of_uneven_pieces(p):
    run_all_to_all(Cluster(p), [[(3 * s + 2 * d) % 5 for d in range(p)] for s in range(p)])


@pytest.mark.parametrize("p", SIZES)
def test_bruck_all_to_all_takes_log2_p_rounds(p):
    same_rounds(run_all_to_all(counting_rounds(p), [[2] * p] * p), log2_up(p), p)
