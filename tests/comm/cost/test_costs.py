"""The costs of collectives: bytes, messages and rounds, counted exactly, for any p and any n.

The formulas are derived here from the definition of each algorithm, not from its code.  c_r is the
length of chunk r of np.array_split, so they hold also where p does not divide n.
"""

import math

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather_object,
    reduce_scatter,
    sum_over_ranks,
)
from minipar.testing import worlds

SIZES = (1, 2, 3, 4, 5, 7, 8)
LENGTHS = (0, 1, 5, 16, 56)


def chunks(n: int, p: int) -> list[int]:
    return [len(piece) for piece in np.array_split(np.arange(n), p)]


def expected_bytes(name: str, n: int, p: int, r: int) -> int:
    """Bytes that rank r sends for n float32."""
    c = chunks(n, p)
    return 4 * {
        # A partial sum of every chunk passes each rank but the chunk's own, where it ends.
        "reduce_scatter": n - c[r],
        # Every chunk passes each rank but the one before its owner, where it ends.
        "all_gather": n - c[(r + 1) % p],
        "all_reduce": n - c[r] + n - c[(r + 1) % p],
        "all_to_all": (p - 1) * n,                              # n here for each of the others
    }[name]


CALLS = {
    "reduce_scatter": lambda comm, n: reduce_scatter(
        comm, np.ones(n, np.float32), algorithm="ring"),
    "all_gather": lambda comm, n: all_gather(
        comm, np.ones(chunks(n, comm.size)[comm.rank], np.float32), total=n,
        algorithm="ring"),
    "all_reduce": lambda comm, n: all_reduce(comm, np.ones(n, np.float32), algorithm="ring"),
    "all_to_all": lambda comm, n: all_to_all(
        comm, np.ones(n * comm.size, np.float32), algorithm="pairwise"),
}


@worlds(*SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_bytes_and_messages_of_every_rank(world, name):
    def body(comm):
        for n in LENGTHS:
            comm.start_trace()
            CALLS[name](comm, n)
            trace = comm.stop_trace()
            p, r = comm.size, comm.rank
            assert trace.bytes_sent(comm.world_rank) == expected_bytes(name, n, p, r)
            assert trace.num_sent() == (2 if name == "all_reduce" else 1) * (p - 1)
            assert {m.label for m in trace.select()} <= {name}
    world.run(body)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_rounds(p, name):
    """With a latency of 1 and no other cost, virtual time counts rounds."""
    _, rounds = Cluster(p, latency=1.0, bandwidth=math.inf).run(lambda c: CALLS[name](c, 5))
    assert rounds == (2 if name == "all_reduce" else 1) * (p - 1)


@pytest.mark.parametrize("p", SIZES)
def test_the_textbook_forms_where_p_divides_n(p):
    n = 56 * 15                                                 # divided by all of SIZES
    for name, share in (("all_reduce", 2 / p), ("reduce_scatter", 1 / p), ("all_gather", 1 / p)):
        cluster = Cluster(p, trace=True)
        cluster.run(lambda comm, name=name: CALLS[name](comm, n))
        for rank in range(p):
            assert cluster.trace.bytes_sent(rank) == round(share * (p - 1) * 4 * n)


@pytest.mark.parametrize("p", SIZES)
def test_all_ranks_together(p):
    """Over all ranks every element is sent p - 1 times to be summed and p - 1 to be known."""
    cluster = Cluster(p, trace=True)
    cluster.run(lambda comm: all_reduce(comm, np.ones(13), algorithm="ring"))
    assert cluster.trace.bytes_sent() == 2 * (p - 1) * 13 * 8


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("root", [0, -1])
def test_broadcast(p, root):
    """Everyone but the root receives the array once, in rounds that double who has it."""
    cluster = Cluster(p, latency=1.0, bandwidth=math.inf, trace=True)
    _, rounds = cluster.run(lambda comm: broadcast(comm, np.ones(3), root % p))
    messages = cluster.trace.select(label="broadcast")
    assert sorted(m.dest for m in messages) == sorted({*range(p)} - {root % p})
    assert cluster.trace.bytes_sent() == (p - 1) * 24
    assert rounds == math.ceil(math.log2(p))


@pytest.mark.parametrize("p", [2, 3, 8])
def test_a_ring_takes_its_latencies_and_its_bytes(p):
    """2(p-1) rounds of n/p bytes: latency 1 s, 8 bytes a second, p chunks of one float64."""
    cluster = Cluster(p, latency=1.0, bandwidth=8.0)
    _, seconds = cluster.run(lambda comm: all_reduce(comm, np.ones(p), algorithm="ring"))
    assert seconds == 2 * (p - 1) * (1.0 + 1.0)


@worlds(1, 2, 3)
def test_bookkeeping_is_counted_apart(world):
    def body(comm):
        comm.start_trace()
        assert sum_over_ranks(comm, comm.rank) == sum(range(comm.size))
        gather_object(comm, {"rank": comm.rank})
        with comm.labelled("control"):
            broadcast(comm, np.ones(5))
        trace = comm.stop_trace()
        assert trace.num_sent() == trace.bytes_sent() == 0      # nothing that a formula counts
        r, p = comm.rank, comm.size
        summed = 8 * (p - 1)
        gathered = len('{"rank": 0}') + 8 if r else 0           # its length, then the text
        passed_on = 40 * sum(1 for m in trace.messages if m[2] == 40)
        assert trace.bytes_sent(label="control") == summed + gathered + passed_on
        assert {m[3] for m in trace.messages} <= {"control"}
    world.run(body)


@worlds(2, 3)
def test_the_outermost_label_counts(world):
    def body(comm):
        comm.start_trace()
        with comm.labelled("gradients"):
            all_reduce(comm, np.ones(comm.size), algorithm="ring")
            with comm.labelled("inner"):
                all_gather(comm, np.ones(1), algorithm="ring")
        all_gather(comm, np.ones(1), algorithm="ring")
        trace = comm.stop_trace()
        p = comm.size
        assert [m.label for m in trace.select()] == (
            ["gradients"] * 3 * (p - 1) + ["all_gather"] * (p - 1))
        assert comm.label == ""
    world.run(body)
