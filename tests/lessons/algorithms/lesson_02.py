"""Lesson 02: in place; numbers that are no result of the operation count as nothing."""

import numpy as np

from minipar.comm import Cluster, collectives
from tests.lessons.algorithms import Case, numbers, says


def in_place(function, comm, size, names):
    """Called on a copy of this rank's numbers."""
    function(comm, x := numbers(comm, size))
    return x


def in_segments(function, comm, size, names):
    function(comm, x := numbers(comm, size), 3)
    return x


def scattered(function, comm, size, names):
    return names["pieces"](comm, in_place(function, comm, size, names), comm.rank, 1)


def on_root(function, comm, size, names):
    x = in_place(function, comm, size, names)
    return None if comm.rank else x


def by_broadcast(name):
    return lambda comm, size: collectives.broadcast(comm, numbers(comm, size), algorithm=name)


def by_gather(comm, size):
    x = numbers(comm, size)
    bounds = collectives.chunk_bounds(size, comm.size)
    return collectives.gather(comm, x[slice(*bounds[comm.rank])], algorithm="binomial",
                              counts=[stop - start for start, stop in bounds])


CASES = [
    Case("tree", in_place, by_broadcast("binomial")),
    Case("chain", in_segments, by_broadcast("pipelined_chain")),
    Case("scatter_all_gather", in_place, by_broadcast("scatter_all_gather")),
    Case("scatter", scattered, lambda comm, size: collectives.scatter(
        comm, numbers(comm, size), algorithm="binomial")),
    Case("gather", on_root, by_gather),
]
PARTS = {"pieces"}


def check_change(names):
    """It ends, after 9 rounds, with rank 0's numbers."""
    def body(comm):
        names["chain"](comm, x := np.arange(8.0) * (comm.rank == 0), 4)
        return x.sum()
    found, rounds = Cluster(4, latency=1, bandwidth=np.inf).run(body)
    assert found == [28] * 4 and rounds == 9
    says("02", "It does not hang", "(p − 1) + 2 (k − 1) = 9 in all", "p + k − 2 = 6")
