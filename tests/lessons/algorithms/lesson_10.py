"""Lesson 10; `size` is the number of layers."""

import numpy as np

from minipar.comm import Cluster
from tests.lessons.algorithms import Case, says


def data(comm, layers):
    """Weights, and this rank's rows, which do not divide evenly."""
    rng = np.random.default_rng(layers)
    rows = np.array_split(np.arange(7), comm.size)[comm.rank]
    return (rng.normal(0, 0.5, (layers, 5, 5)), rng.random((7, 5))[rows],
            rng.integers(0, 5, 7)[rows])


def shard(comm, array):
    return np.array_split(array.reshape(-1), comm.size)[comm.rank].copy()


def run_fsdp(function, comm, layers, names):
    weights, x, labels = data(comm, layers)
    grads, most = function(comm, [shard(comm, w) for w in weights], (5, 5), x, labels, 7)
    return [*grads, most]


def by_library(comm, layers):
    from support.lesson_10 import library_gradients
    return [*(shard(comm, grad) for grad in library_gradients(comm, *data(comm, layers))),
            min(2, layers)]


def gather_whole(function, comm, layers, names):
    """Two gathers at once; each has the weight that was cut."""
    weights, _, _ = data(comm, 2)
    begun = [function(comm, shard(comm, w), (5, 5)) for w in weights]
    for _, requests in begun:
        for request in requests:
            request.wait()
    return [weight for weight, _ in begun]


CASES = [
    Case("gather", gather_whole, lambda comm, layers: [*data(comm, 2)[0]], (2,)),
    Case("fsdp", run_fsdp, by_library, (1, 2, 4), 1e-14),
]


def check_change(names):
    """All weights are whole at once; gradients and bytes are as before."""
    def body(comm):
        comm.start_trace()
        *grads, most = run_fsdp(names["fsdp"], comm, 6, names)
        sent = comm.stop_trace().bytes_sent()
        return max(np.abs(a - b).max(initial=0) for a, b in zip(
            grads, by_library(comm, 6)[:-1])), most, sent
    for error, most, sent in Cluster(5).run(body)[0]:
        assert error < 1e-14 and most == 6 and sent == 3 * 6 * 25 // 5 * 4 * 8
    says("10", "Gradients and bytes stay the same", "six weights are whole at a time")
