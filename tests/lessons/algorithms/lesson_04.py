"""Lesson 04."""

import numpy as np

from minipar.comm import Cluster, collectives
from minipar.comm.collectives.all_reduce import torus
from tests.lessons.algorithms import Case, numbers, says


def on_numbers(function, comm, size, names):
    return function(comm, numbers(comm, size))


def on_any_number(function, comm, size, names):
    """An algorithm for 2^k ranks, on all ranks."""
    return names["on_any_number"](function, comm, numbers(comm, size))


def on_nodes(function, comm, size, names):
    """On one node; and, if p is even, on nodes of 2 ranks."""
    x = numbers(comm, size)
    return [function(comm, x, per_node) for per_node in ([2] if comm.size % 2 == 0 else []) + [
        comm.size]]


def by_all_reduce(name):
    return lambda comm, size: collectives.all_reduce(comm, numbers(comm, size), algorithm=name)


def by_torus(comm, size):
    x, found = numbers(comm, size), []
    for per_node in ([2] if comm.size % 2 == 0 else []) + [comm.size]:
        found.append(x.copy())
        torus(comm, found[-1], "sum", per_node)
    return found


CASES = [
    Case("ring", on_numbers, by_all_reduce("ring")),
    Case("double", on_any_number, by_all_reduce("recursive_doubling")),
    Case("halve_and_double", on_any_number, by_all_reduce("rabenseifner")),
    Case("two_levels", on_nodes, by_torus),
]
PARTS = {"on_any_number"}


def check_change(names):
    """Two ranks get the sum, 4 get 2 times, 8 get 16 times the sum."""
    for p, times in ((2, 1), (4, 2), (8, 16)):
        def body(comm):
            x = np.arange(3.0) + comm.rank
            names["double"](comm, [*range(comm.size)], x)
            return x
        for total in Cluster(p).run(body)[0]:
            assert np.array_equal(total, times * (p * np.arange(3) + p * (p - 1) / 2))
    says("04", "every rank gets twice the sum", "16 times the sum")
