"""Counted = predicted, exactly: every operation × algorithm × p = 1 … 33, even and uneven n."""

import numpy as np
import pytest

from minipar.comm import collectives
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives.all_reduce import blocked_ring
from minipar.comm.collectives.broadcast import pipelined_chain
from minipar.comm.collectives.operations import OVER_NODES
from minipar.comm.cost import (
    Cost,
    Network,
    best_num_segments,
    predict,
    seconds,
    seconds_on,
    textbook,
)
from tests.support.operation_table import ALL, NAMES, call
from tests.support.print_table import count

EXACT = [(o, a) for o, a in ALL if a not in ("auto", *OVER_NODES)]
exact = pytest.mark.parametrize(("operation", "algorithm"), EXACT,
                                ids=[n for n, pair in zip(NAMES, ALL) if pair in EXACT])


@pytest.mark.parametrize("sizes", [
    pytest.param((*range(1, 14), 15, 16, 17, 24, 31, 32, 33), id="1-33 in part"),
    pytest.param(range(1, 34), id="1-33", marks=pytest.mark.slow)])
@exact
@pytest.mark.one_in(3)
def test_counted_is_predicted(operation, algorithm, sizes):
    for p in sizes:
        n = (2 * p, 37, 0)[p % 3]               # p | n, p ∤ n, nothing
        if operation == "all_to_all":
            n -= n % p                          # uneven: below, by a table
        found = count(p, lambda comm, n=n: call(operation, algorithm, comm, n))
        assert found == predict(operation, algorithm, p, n), (p, n)


@exact
@pytest.mark.one_in(3)
def test_counted_is_predicted_for_other_lengths(operation, algorithm):
    for p in (2, 5, 6, 8, 13):
        for n in (1, 3 * p, 3 * p + 2, 4 * p - 1):
            if operation == "all_to_all":
                n -= n % p
            found = count(p, lambda comm, n=n: call(operation, algorithm, comm, n))
            assert found == predict(operation, algorithm, p, n), (p, n)


@pytest.mark.parametrize("num_segments", [1, 2, 5, 20])
def test_a_pipelined_chain_of_k_segments(num_segments):
    for p in (1, 2, 3, 7, 16):
        for n in (0, 3, 20, 33):
            found = count(p, lambda comm, p=p, n=n: pipelined_chain(
                comm, np.ones(n), p - 1, num_segments))
            right = predict("broadcast", "pipelined_chain", p, n, num_segments=num_segments)
            assert found == right
            if n % num_segments == 0 < n:
                assert found[:2] == textbook("broadcast", "pipelined_chain", p, 8 * n,
                                             num_segments=num_segments)[:2]


@pytest.mark.parametrize("block_bytes", [1, 24, 104, 1000])
def test_a_blocked_ring_of_any_block(block_bytes):
    for p in (1, 2, 3, 8):
        for n in (0, 1, 13, 40):
            found = count(p, lambda comm, n=n: blocked_ring(comm, np.ones(n), "sum", block_bytes))
            assert found == predict("all_reduce", "blocked_ring", p, n, block_bytes=block_bytes)
            if n == 40 and p in (1, 2, 8) and block_bytes == 1000:
                assert found == predict("all_reduce", "ring", p, n)


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 4, 8, 40])
@pytest.mark.parametrize("name", OVER_NODES)
def test_over_nodes_by_ranks_per_node(name, ranks_per_node):
    run = ALGORITHMS["all_reduce"][name].run
    for p in (1, 2, 5, 8, 16, 23, 33):
        found = count(p, lambda comm: run(comm, np.ones(13), "sum", ranks_per_node))
        assert found == predict("all_reduce", name, p, 13, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize(("operation", "algorithm"), [
    (o, a) for o, a in EXACT if o in ("all_gather", "reduce_scatter", "gather", "scatter")])
def test_uneven_counts(operation, algorithm):
    run, whole = getattr(collectives, operation), operation in ("reduce_scatter", "scatter")
    for p in (2, 3, 6, 8, 13):
        counts = np.random.default_rng(p).integers(0, 5, p).tolist()
        found = count(p, lambda comm, counts=counts: run(
            comm, np.ones(sum(counts) if whole else counts[comm.rank]), algorithm=algorithm,
            counts=counts))
        assert found == predict(operation, algorithm, p, sum(counts), counts=counts)


@pytest.mark.parametrize("algorithm", ["pairwise", "bruck"])
def test_all_to_all_by_a_table(algorithm):
    for p in (1, 2, 3, 6, 8, 13):
        table = np.random.default_rng(p).integers(0, 5, (p, p)).tolist()
        found = count(p, lambda comm, table=table: collectives.all_to_all(
            comm, np.ones((sum(table[comm.rank]), 2)), algorithm=algorithm, counts=table))
        twice = [[2 * k for k in row] for row in table]
        assert found == predict("all_to_all", algorithm, p, 0, counts=twice)


# FORMULAS: rounds, bytes, reduced for n bytes on p ranks, k = log₂ p; p a power of two, p | n.
CLOSED = {
    ("all_reduce", "ring"): lambda p, n, k: (2 * (p - 1), 2 * n * (p - 1) / p, n * (p - 1) / p),
    ("all_reduce", "recursive_doubling"): lambda p, n, k: (k, n * k, n * k),
    ("all_reduce", "rabenseifner"): lambda p, n, k: (2 * k, 2 * n * (p - 1) / p, n * (p - 1) / p),
    ("all_reduce", "tree"): lambda p, n, k: (2 * k, 2 * n * k, n * k),
    ("all_gather", "ring"): lambda p, n, k: (p - 1, n * (p - 1) / p, 0),
    ("all_gather", "bruck"): lambda p, n, k: (k, n * (p - 1) / p, 0),
    ("all_gather", "recursive_doubling"): lambda p, n, k: (k, n * (p - 1) / p, 0),
    ("reduce_scatter", "ring"): lambda p, n, k: (p - 1, n * (p - 1) / p, n * (p - 1) / p),
    ("reduce_scatter", "pairwise"): lambda p, n, k: (p - 1, n * (p - 1) / p, n * (p - 1) / p),
    ("reduce_scatter", "recursive_halving"): lambda p, n, k: (k, n * (p - 1) / p, n * (p - 1) / p),
    ("broadcast", "binomial"): lambda p, n, k: (k, n * k, 0),
    ("broadcast", "chain"): lambda p, n, k: (p - 1, n * (p - 1), 0),
    ("broadcast", "scatter_all_gather"): lambda p, n, k: (k + p - 1, 2 * n * (p - 1) / p, 0),
    ("all_to_all", "pairwise"): lambda p, n, k: (p - 1, n * (p - 1) / p, 0),
    ("all_to_all", "bruck"): lambda p, n, k: (k, n / 2 * k, 0),
    ("barrier", "dissemination"): lambda p, n, k: (k, 0, 0),
    ("reduce", "binomial"): lambda p, n, k: (k, n * k, n * k),
    ("reduce", "rabenseifner"): lambda p, n, k: (2 * k, 2 * n * (p - 1) / p, n * (p - 1) / p),
}


@pytest.mark.parametrize("case", CLOSED, ids="-".join)
def test_the_closed_forms_hold_where_p_is_a_power_of_two_that_divides_n(case):
    for k in range(7):
        p = 2**k
        cost = predict(*case, p, 3 * p, itemsize=4)
        right = CLOSED[case](p, 12 * p, k)
        assert (cost.rounds, cost.num_bytes, cost.reduced) == right
        book = textbook(*case, p, 12 * p)
        assert (book.rounds, book.num_bytes, book.reduced) == right


def test_what_holds_for_any_p():
    for p in range(1, 34):
        up, floor = (p - 1).bit_length(), p.bit_length() - 1
        odd = p != 2**floor
        for operation, algorithm in EXACT:
            if algorithm == "pipelined_chain":
                continue
            cost = predict(operation, algorithm, p, 5 * p)
            assert cost.rounds <= textbook(operation, algorithm, p, 40 * p).rounds
        doubling = predict("all_reduce", "recursive_doubling", p, 5)
        assert doubling.rounds == (floor + 2 if odd else floor)
        assert doubling.num_bytes == 40 * doubling.rounds
        assert predict("barrier", "dissemination", p, 0) == (up, 0, p * up, 0)
        assert predict("barrier", "tree", p, 0).messages == 2 * (p - 1)
        assert predict("all_reduce", "ring", p, 3 * p)[:2] == (2 * (p - 1), 48 * (p - 1))
        assert predict("all_gather", "bruck", p, 3 * p)[:2] == (up, 24 * (p - 1))


def test_a_ring_with_uneven_chunks_costs_more_than_the_textbook_says():
    assert predict("all_reduce", "ring", 32, 33, itemsize=1).num_bytes == 124
    assert textbook("all_reduce", "ring", 32, 33).num_bytes == 2 * 33 * 31 / 32


def test_best_num_segments_is_the_best():
    p, n, latency, bandwidth = 9, 1 << 20, 1e-5, 1e9

    def time(k: int) -> float:
        return seconds(textbook("broadcast", "pipelined_chain", p, n, num_segments=k),
                       latency, bandwidth)
    best = best_num_segments(p, n, latency, bandwidth)
    assert best == min(range(1, 200), key=time) == 27
    assert best_num_segments(2, n) == best_num_segments(1, n) == 1


def test_seconds():
    assert seconds(Cost(3, 1000, 7, 500), latency=2.0, bandwidth=10) == 106
    assert seconds(Cost(3, 1000, 7, 500), 2.0, 10, combining=5) == 206


@pytest.mark.parametrize(("args", "message"), [
    (("all_reduce", "best", 4, 4), "'best': choose from ring, blocked_ring"),
    (("all_sum", "ring", 4, 4), "choose from all_gather, all_reduce"),
    (("all_reduce", "ring", 0, 4), "at least 1 rank")])
def test_mistakes_are_named(args, message):
    with pytest.raises(ValueError, match=message):
        predict(*args)
    if args[2]:
        with pytest.raises(ValueError, match="choose from"):
            textbook(*args)
        with pytest.raises(ValueError, match="choose from"):
            seconds_on(*args, Network())
