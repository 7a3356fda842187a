"""Lesson 11; `size` is the number of layers of each rank."""

import numpy as np

from minipar import autograd as ag
from minipar.comm import Cluster
from minipar.parallel import conjugate
from tests.lessons.algorithms import Case, matrix, numbers, says

SOME = (1, 2, 3)


def support():
    from support import lesson_11
    return lesson_11


def given(comm, size):
    """Weights of stages, this rank's column, samples and labels."""
    weights, columns, x, labels = support().values(comm.size, size * comm.size)
    return weights, columns[comm.rank], x, labels


def run_stages(function, comm, size, names):
    weights, _, x, labels = given(comm, size)
    return function(comm, weights, x, labels)


def by_strategy(comm, size):
    weights, _, x, labels = given(comm, size)
    return support().library_stages(comm, weights, x, labels)


def run_columns(function, comm, size, names):
    return function(comm, *given(comm, size)[1:])


def exchanged(function, comm, size, names):
    h = names["Tensor"](numbers(comm, 4 * size).reshape(4, size))
    y = function(h, comm)
    names["backward"](y, matrix(comm, 4 * size).reshape(4, -1))
    return [y.data, h.grad]


def by_all_gather(comm, size):
    h = ag.Tensor(numbers(comm, 4 * size).reshape(4, size), requires_grad=True)
    y = conjugate.all_gather(h, comm, 1)
    ag.backward(y, matrix(comm, 4 * size).reshape(4, -1))
    return [y.data, h.grad]


CASES = [
    Case("in_stages", run_stages, by_strategy, SOME, 1e-13),
    Case("exchange", exchanged, by_all_gather, SOME),
    Case("in_columns", run_columns,
         lambda comm, size: support().library_columns(comm, *given(comm, size)[1:]), SOME, 1e-12),
]


def check_change(names):
    """The same gradients, and as many seconds as messages and layers that wait for one another."""
    num_bytes, latency, seconds = 8 * 5 * 8, 1e-3, 1.0
    for p in (2, 4):
        weights, _, x, labels = support().values(p, p)
        alone = names["one_process"](weights, x, labels)

        def body(comm, weights=weights, x=x, labels=labels):
            wait = comm.recv

            def wait_and_work(out, source):
                wait(out, source)
                comm.report_compute("layer", int(seconds * comm.cluster.flops_per_second), 0, 0.0)
            comm.recv = wait_and_work
            return names["in_stages"](comm, weights, x, labels)
        cluster = Cluster(p, latency=latency, bandwidth=1e9, trace=True)
        grads, took = cluster.run(body)
        np.testing.assert_allclose(np.concatenate(grads), alone, rtol=0, atol=1e-13)
        assert cluster.trace.num_sent() == 2 * (p - 1)
        assert np.isclose(took, 2 * (p - 1) * (latency + num_bytes / 1e9 + seconds), rtol=1e-9)
    says("11", "Gradients, messages and the time of a step stay the same")
