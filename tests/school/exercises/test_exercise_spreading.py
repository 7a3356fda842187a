"""Exercises dissemination_barrier, pipelined_chain, bruck_all_gather and recursive_halving.

On a cluster where a message takes 1 s and bytes take no time, virtual time counts rounds.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.arguments import chunk_bounds
from minipar.comm.collectives import barrier
from minipar.comm.collectives.all_gather import bruck as bruck_all_gather
from minipar.comm.collectives.broadcast import pipelined_chain
from minipar.comm.collectives.reduce_scatter import halve
from tests.school.exercises.test_exercise_collectives import SIZES, data, pieces

POWERS = [1, 2, 4, 8, 16]


def log2_up(p):
    return (p - 1).bit_length()


def counting_rounds(p):
    return Cluster(p, latency=1.0, bandwidth=1e30, trace=True)


def same_rounds(seconds, rounds, p):
    assert round(seconds) == rounds, f"{p} ranks took {round(seconds)} rounds, not {rounds}"


# Barrier

@pytest.mark.parametrize("p", SIZES)
def test_barrier_lets_nobody_go_before_the_last_has_come(p):
    for late in range(p):
        def main(comm, late=late):
            comm.report_compute("late", 100 * (comm.rank == late), 0, 0.0)
            barrier(comm, "dissemination")
            return comm.now()
        times, _ = Cluster(p, latency=0.1, flops_per_second=1, eager=1).run(main)
        early = [rank for rank, time in enumerate(times) if time < 100]
        assert not early, f"{p} ranks: rank {late} came at 100 s, ranks {early} had left by then"


@pytest.mark.parametrize("p", SIZES)
def test_barrier_takes_log2_p_rounds_of_empty_messages(p):
    cluster = counting_rounds(p)
    _, seconds = cluster.run(lambda comm: barrier(comm, "dissemination"))
    same_rounds(seconds, log2_up(p), p)
    assert cluster.trace.bytes_sent() == 0, "a barrier has nothing to say: its messages are empty"


# Pipelined chain

@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("num_segments", [1, 3, 4])
def test_chain_brings_the_array_to_everyone(p, num_segments):
    for root in {0, p // 2, p - 1}:
        def main(comm, root=root):
            array = data(comm.rank, 11)
            pipelined_chain(comm, array, root, num_segments)
            return array
        for rank, result in enumerate(Cluster(p).run(main)[0]):
            assert np.array_equal(result, data(root, 11)), \
                f"rank {rank} of {p} has not the array of root {root}, {num_segments} segments"


@pytest.mark.parametrize("p", [2, 3, 5])
def test_chain_of_an_array_with_gaps_and_of_fewer_numbers_than_segments(p):
    def main(comm):
        array = data(comm.rank, 12).reshape(3, 4)[:, :3]
        pipelined_chain(comm, array, 0, 2)
        short = data(comm.rank, 2)
        pipelined_chain(comm, short, 0, 5)
        return array, short
    for rank, (array, short) in enumerate(Cluster(p).run(main)[0]):
        assert np.array_equal(array, data(0, 12).reshape(3, 4)[:, :3]), \
            f"rank {rank}: an array with gaps was not filled"
        assert np.array_equal(short, data(0, 2)), f"rank {rank}: 2 numbers in 5 segments"


@pytest.mark.parametrize("p, num_segments", [(2, 4), (3, 1), (4, 6), (8, 10)])
def test_chain_takes_p_plus_k_minus_2_rounds(p, num_segments):
    _, seconds = counting_rounds(p).run(
        lambda comm: pipelined_chain(comm, data(comm.rank, 60), 0, num_segments))
    same_rounds(seconds, p + num_segments - 2, f"{num_segments} segments, {p}")


# All-gather

def run_bruck(cluster, lengths):
    whole = [data(rank, n) for rank, n in enumerate(lengths)]

    def main(comm):
        chunks = [np.full(n, np.nan) for n in lengths]
        chunks[comm.rank][...] = whole[comm.rank]
        bruck_all_gather(comm, chunks)
        return chunks
    results, seconds = cluster.run(main)
    for rank, chunks in enumerate(results):
        wrong = [i for i, chunk in enumerate(chunks) if not np.array_equal(chunk, whole[i])]
        assert not wrong, f"{len(lengths)} ranks: rank {rank} has chunks {wrong} wrong"
    return seconds


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
def test_bruck_all_gather_fills_all_chunks(p):
    run_bruck(Cluster(p), [3] * p)
    run_bruck(Cluster(p), [(5 * rank + 2) % 4 for rank in range(p)])


@pytest.mark.parametrize("p", [*SIZES, 6, 7])
def test_bruck_all_gather_takes_log2_p_rounds_and_no_byte_more(p):
    cluster = counting_rounds(p)
    same_rounds(run_bruck(cluster, [2] * p), log2_up(p), p)
    for rank in range(p):
        sent = cluster.trace.bytes_sent(rank)
        assert sent == 16 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not n(p-1)/p"


# Recursive halving

def run_halve(cluster, n, combine=np.add):
    def main(comm):
        flat = data(comm.rank, n)
        bounds = chunk_bounds(n, comm.size)
        halve(comm, flat, bounds, combine)
        return flat[slice(*bounds[comm.rank])]
    return cluster.run(main)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("n", [32, 19, 3])
def test_halving_leaves_every_rank_its_sum(p, n):
    total = pieces(sum(data(rank, n) for rank in range(p)), p)
    for rank, result in enumerate(run_halve(Cluster(p), n)[0]):
        assert np.array_equal(result, total[rank]), \
            f"{p} ranks, {n} numbers: part {rank} on rank {rank} is not the sum over the ranks"


def test_halving_with_another_operator():
    largest = pieces(np.max([data(rank, 9) for rank in range(4)], axis=0), 4)
    for rank, result in enumerate(run_halve(Cluster(4), 9, np.maximum)[0]):
        assert np.array_equal(result, largest[rank]), f"combine=np.maximum: rank {rank} is wrong"


@pytest.mark.parametrize("p", POWERS)
def test_halving_takes_log2_p_rounds_and_as_few_bytes_as_a_ring(p):
    cluster = counting_rounds(p)
    same_rounds(run_halve(cluster, 2 * p)[1], log2_up(p), p)
    for rank in range(p):
        sent = cluster.trace.bytes_sent(rank)
        assert sent == 16 * (p - 1), f"rank {rank} of {p} sent {sent} bytes, not n(p-1)/p"
