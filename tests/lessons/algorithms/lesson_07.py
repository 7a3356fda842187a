"""Lesson 07; `size` is the number of samples."""

import numpy as np

from minipar.comm import Cluster, collectives
from tests.lessons.algorithms import Case, numbers, says


def data(rows):
    rng = np.random.default_rng(rows)
    return rng.normal(0, 0.5, (3, 5, 5)), rng.random((rows, 5)), rng.integers(0, 5, rows)


def gradients(function, comm, rows, names):
    weights, x, labels = data(rows)
    return function(comm, [*weights.copy()], x, labels)


def on_root(function, comm, rows, names):
    """The other ranks' weights count as nothing; their gradients are no result."""
    weights, x, labels = data(rows)
    found = function(comm, [*(weights * (comm.rank == 0))], x, labels)
    return None if comm.rank else found


def by_library(name):
    def run(comm, rows):
        from support.lesson_07 import library_gradients
        return library_gradients(comm, name, *data(rows))
    return run


def dealt(function, comm, size, names):
    """Rank 0 deals its numbers."""
    x = numbers(comm, size)
    mine = np.empty_like(np.array_split(x, comm.size)[comm.rank])
    function(comm, np.array_split(x, comm.size), mine)
    return mine


def collected(function, comm, size, names):
    parts = [np.empty(size) for _ in range(comm.size)]
    function(comm, numbers(comm, size), parts)
    return None if comm.rank else np.concatenate(parts)


CASES = [
    Case("from_root", dealt, lambda comm, size: collectives.scatter(comm, numbers(comm, size))),
    Case("to_root", collected, lambda comm, size: collectives.gather(comm, numbers(comm, size))),
    Case("with_root", on_root, by_library("DataParallel"), (5, 9), 1e-14),
    Case("ddp", gradients, by_library("DDP"), (5, 9), 1e-14),
]


def check_change(names):
    """The sum of four means; divided by 4, each sample of rank 0 weighs 1/12, all others 1/8."""
    weights, x, labels = data(9)

    def of_samples(rows):
        """The sum of the gradients of some samples."""
        grads = names["one_process"](weights, x[rows], labels[rows])
        return np.array(grads) * len(rows)
    mean_of_means = of_samples(np.arange(3)) / 12 + of_samples(np.arange(3, 9)) / 8
    alone = of_samples(np.arange(9)) / 9
    for found in Cluster(4).run(lambda comm: gradients(names["ddp"], comm, 9, names))[0]:
        np.testing.assert_allclose(np.array(found) / 4, mean_of_means, atol=1e-14)
        assert np.abs(np.array(found) / 4 - alone).max() > 1e-3
    says("07", "the samples of rank 0 weigh 1/12 each and all others 1/8", "4 times too large")
