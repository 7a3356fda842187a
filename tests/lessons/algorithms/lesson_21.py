"""Lesson 21; `size` is the number of layers.  Each rank works by itself."""

import numpy as np

from minipar.comm import Cluster
from tests.lessons.algorithms import Case, numbers, says


def data(layers):
    rng = np.random.default_rng(layers)
    return rng.normal(0, 0.5, (layers, 5, 5)), rng.random((7, 5)), rng.integers(0, 5, 7)


def gradients(function, comm, layers, names):
    grads, most = function(comm, *data(layers))
    return [*grads, np.array(most)]


def by_library(comm, layers):
    from support.lesson_21 import library_gradients
    return [*library_gradients(*data(layers)), np.array(min(2, layers))]


def copied(function, comm, size, names):
    out = np.empty(size)
    for request in function(comm, numbers(comm, size), out):
        request.wait()
    return out


CASES = [
    Case("begin_copy", copied, numbers),
    Case("offloaded", gradients, by_library, (1, 2, 5), 1e-15),
]


def check_change(names):
    """Gradients and bytes are right, but all six inputs are here."""
    def body(comm):
        comm.start_trace()
        grads, most = names["offloaded"](comm, *data(6))
        return grads, most, comm.stop_trace().bytes_sent()
    ((grads, most, sent),) = Cluster(1).run(body)[0]
    np.testing.assert_allclose(grads, by_library(None, 6)[:-1], atol=1e-15)
    assert most == 6 and sent == 2 * 5 * 7 * 5 * 8
    says("21", "all six inputs are here at the end of forward", "as many bytes are copied")
