"""Lesson 08; of ddp `size` is the number of layers."""

import numpy as np

from minipar.comm import Cluster, collectives
from tests.lessons.algorithms import Case, numbers, says


def data(comm, layers):
    """Weights, and this rank's rows, which do not divide evenly."""
    rng = np.random.default_rng(layers)
    rows = np.array_split(np.arange(7), comm.size)[comm.rank]
    return (rng.normal(0, 0.5, (layers, 5, 5)), rng.random((7, 5))[rows],
            rng.integers(0, 5, 7)[rows])


def in_rounds(function, comm, size, names):
    """Two rings at once: the other one of twice the numbers."""
    x = numbers(comm, size)
    rings = [(one, next(one, [])) for one in (function(comm, x, 1), function(comm, 2 * x, 2))]
    names["go_on"](rings, wait=True)
    return x


def gradients(function, comm, layers, names):
    return function(comm, *data(comm, layers), 7, 2)


def by_library(comm, layers):
    from support.lesson_08 import library_gradients
    return library_gradients(comm, *data(comm, layers))


CASES = [
    Case("ring", in_rounds, lambda comm, size: collectives.all_reduce(
        comm, numbers(comm, size), algorithm="ring")),
    Case("ddp", gradients, by_library, (1, 2, 5), 1e-14),
]
PARTS = {"go_on", "backward"}


def check_change(names):
    """Gradients are right; when backward ends, each ring has begun one round, and ended none."""
    go_on, left = names["go_on"], []

    def noting(rings, wait=False):
        left.append(len(rings) if wait else None)
        go_on(rings, wait)
    names["go_on"] = noting
    found = Cluster(3).run(lambda comm: (gradients(names["ddp"], comm, 5, names),
                                         by_library(comm, 5)))[0]
    for mine, right in found:
        np.testing.assert_allclose(mine, right, atol=1e-14)
    assert left == [3] * 3, "three rings of each rank are under way, and none was asked before"
    says("08", "They are right: after backward", "each ring has only begun its first round")
