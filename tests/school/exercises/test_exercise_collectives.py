"""Exercises binomial_broadcast, ring_reduce_scatter, ring_all_gather and ring_all_reduce.

All on the simulated cluster: every send waits for its receive, time is virtual, bytes are counted.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.arguments import chunk_bounds
from minipar.comm.collectives import broadcast
from minipar.comm.collectives.all_gather import ring as ring_all_gather
from minipar.comm.collectives.all_reduce import ring as ring_all_reduce
from minipar.comm.collectives.reduce_scatter import ring as ring_reduce_scatter

SIZES = [1, 2, 3, 4, 5, 8]


def data(rank, n):
    """Whole numbers, so that sums are exact in any order; 1 … so that nothing is 0."""
    return np.random.default_rng([rank, n]).integers(1, 1000, n).astype(np.float64)


def pieces(array, p):
    return [array[start:stop] for start, stop in chunk_bounds(array.size, p)]


def only_to_the_next_rank(cluster):
    p = cluster.num_ranks
    for m in cluster.trace.select():
        assert m.dest == (m.source + 1) % p, f"rank {m.source} sent to {m.dest}: not the next rank"


# Broadcast

@pytest.mark.parametrize("p", SIZES)
def test_broadcast_from_rank_0(p):
    results, _ = Cluster(p).run(lambda comm: broadcast(comm, data(comm.rank, 6)))
    for rank, result in enumerate(results):
        assert np.array_equal(result, data(0, 6)), f"rank {rank} of {p} has not rank 0's array"


@pytest.mark.parametrize("p", SIZES)
def test_broadcast_from_every_root(p):
    for root in range(p):
        def main(comm, root=root):
            return broadcast(comm, data(comm.rank, 6), root)
        for rank, result in enumerate(Cluster(p).run(main)[0]):
            assert np.array_equal(result, data(root, 6)), \
                f"rank {rank} of {p} has not the array of root {root}"


@pytest.mark.parametrize("p, rounds", [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (16, 4)])
def test_broadcast_takes_log2_p_rounds(p, rounds):
    """A message takes 1 s on this cluster."""
    cluster = Cluster(p, latency=1.0, bandwidth=1e30, trace=True)
    _, seconds = cluster.run(lambda comm: broadcast(comm, data(comm.rank, 6)))
    sent = cluster.trace.num_sent()
    assert sent == p - 1, f"{sent} messages for {p} ranks: each but the root receives once"
    assert round(seconds) == rounds, \
        f"{p} ranks took {round(seconds)} rounds, ⌈log₂ {p}⌉ = {rounds}"


# Reduce-scatter

def run_reduce_scatter(cluster, n, combine=np.add):
    def main(comm):
        chunks = pieces(data(comm.rank, n), comm.size)
        ring_reduce_scatter(comm, chunks, combine)
        return chunks[comm.rank]
    return cluster.run(main)[0]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("n", [16, 11, 2])
def test_reduce_scatter_leaves_every_rank_its_sum(p, n):
    total = pieces(sum(data(rank, n) for rank in range(p)), p)
    for rank, result in enumerate(run_reduce_scatter(Cluster(p), n)):
        assert np.array_equal(result, total[rank]), \
            f"{p} ranks, {n} numbers: chunk {rank} on rank {rank} is not the sum over the ranks"


def test_reduce_scatter_with_another_operator():
    largest = pieces(np.max([data(rank, 9) for rank in range(4)], axis=0), 4)
    for rank, result in enumerate(run_reduce_scatter(Cluster(4), 9, np.maximum)):
        assert np.array_equal(result, largest[rank]), f"combine=np.maximum: rank {rank} is wrong"


@pytest.mark.parametrize("p", SIZES)
def test_reduce_scatter_sends_as_little_as_possible(p):
    cluster = Cluster(p, trace=True)
    run_reduce_scatter(cluster, 8 * p)
    only_to_the_next_rank(cluster)
    for rank in range(p):
        sent, num = cluster.trace.bytes_sent(rank), cluster.trace.num_sent(rank)
        assert num == p - 1, f"rank {rank} of {p} sent {num} messages, not p - 1"
        assert sent == 64 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not n(p-1)/p"


# All-gather

def run_all_gather(cluster, n):
    def main(comm):
        whole = np.full(n, np.nan)
        chunks = pieces(whole, comm.size)
        chunks[comm.rank][...] = pieces(data(7, n), comm.size)[comm.rank]
        ring_all_gather(comm, chunks)
        return whole
    return cluster.run(main)[0]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("n", [16, 11, 2])
def test_all_gather_fills_all_chunks(p, n):
    for rank, whole in enumerate(run_all_gather(Cluster(p), n)):
        wrong = [i for i, (a, b) in enumerate(zip(pieces(whole, p), pieces(data(7, n), p)))
                 if not np.array_equal(a, b)]
        assert not wrong, f"{p} ranks, {n} numbers: rank {rank} has chunks {wrong} wrong"


@pytest.mark.parametrize("p", SIZES)
def test_all_gather_sends_as_little_as_possible(p):
    cluster = Cluster(p, trace=True)
    run_all_gather(cluster, 8 * p)
    only_to_the_next_rank(cluster)
    for rank in range(p):
        sent, num = cluster.trace.bytes_sent(rank), cluster.trace.num_sent(rank)
        assert num == p - 1, f"rank {rank} of {p} sent {num} messages, not p - 1"
        assert sent == 64 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not n(p-1)/p"


# All-reduce

def run_all_reduce(cluster, n, op="sum"):
    def main(comm):
        flat = data(comm.rank, n)
        ring_all_reduce(comm, flat, op)
        return flat
    return cluster.run(main)[0]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("n", [16, 11, 2])
def test_all_reduce_gives_everyone_the_sum(p, n):
    total = sum(data(rank, n) for rank in range(p))
    for rank, result in enumerate(run_all_reduce(Cluster(p), n)):
        assert np.array_equal(result, total), \
            f"{p} ranks, {n} numbers: rank {rank} has {result}, not the sum {total}"


@pytest.mark.parametrize("op, reduced", [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_all_reduce_with_other_operators(op, reduced):
    expected = reduced([data(rank, 9) for rank in range(3)], axis=0)
    for rank, result in enumerate(run_all_reduce(Cluster(3), 9, op)):
        assert np.array_equal(result, expected), f"op={op!r}: rank {rank} has {result}"


@pytest.mark.parametrize("p", SIZES)
def test_all_reduce_sends_as_little_as_possible(p):
    cluster = Cluster(p, trace=True)
    run_all_reduce(cluster, 8 * p)
    for rank in range(p):
        sent, num = cluster.trace.bytes_sent(rank), cluster.trace.num_sent(rank)
        assert num == 2 * (p - 1), f"rank {rank} of {p} sent {num} messages, not 2(p - 1)"
        assert sent == 2 * 64 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not 2n(p-1)/p"
