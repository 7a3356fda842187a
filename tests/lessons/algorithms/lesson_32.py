"""Lesson 32; `size` is the number of steps, or the delay."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.optim import SGD
from minipar.parallel.pipeline.late_weights.pipedream_by_versions import PipeDreamByVersions
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says


def data(p, steps):
    """Weights of p layers, and `steps` batches of p microbatches."""
    rng = np.random.default_rng(steps)
    return (rng.normal(0, 0.4, (p, 6, 6)), rng.standard_normal((steps * p, 3, 6)),
            rng.integers(0, 6, (steps * p, 3)))


def delays(p):
    """By kind (in the library's order): the delay of each stage, the microbatches of a step."""
    return {"PipeDream": (range(p)[::-1], 1), "2BW": ([1] * p, p),
            "vertical sync": ([p - 1] * p, 1)}


def own_streams(stream, comm, steps, names):
    weights, *stream_of = data(comm.size, steps)
    return [stream(comm, weights[comm.rank], *stream_of, late[comm.rank], per_step)
            for late, per_step in delays(comm.size).values()]


def library_streams(comm, steps):
    from support.lesson_32 import library_layer
    return [library_layer(comm, kind, *data(comm.size, steps))[0] for kind in delays(comm.size)]


def own_late(late_sgd, comm, steps, names):
    """In one process, on each rank; all layers."""
    weights, x, labels = data(3, steps)
    return [late_sgd(lambda w, t: np.array(names["one_process"](w, x[t], labels[t])), weights,
                     late, len(x))[-1] for late in ([2, 1, 0], [2] * 3, [1] * 3)]


def library_late(comm, steps):
    from support.lesson_32 import PlainMLP
    weights, x, labels = data(3, steps)
    found = []
    for late in ([2, 1, 0], [2] * 3, [1] * 3):
        def body(comm, late=late):
            strategy = PipeDreamByVersions(PlainMLP(weights), comm, 3,
                                           lambda t, stage: max(0, t - late[stage]))
            strategy.optimizer = SGD(strategy.slabs, 0.5)
            strategy.forward_backward([Microbatch(*each, np.arange(3)) for each in zip(x, labels)])
            state = strategy.state_dict()
            return np.array([state[f"{2 * i}.weight"] for i in range(3)])
        found.append(Cluster(1).run(body)[0][0])
    return found


def own_optimum(comm):
    """Gradients of (w - own optimum)² / 4, of five weights."""
    return lambda w, t: 0.5 * (w - np.arange(5) * comm.rank)


def own_averaging(function, comm, delay, names):
    return function(comm, own_optimum(comm), np.ones(5), delay, 4)


def library_averaging(comm, delay):
    from support.lesson_32 import library_averaging as by_library
    return by_library(comm, own_optimum(comm), np.ones(5), delay, 4)


CASES = [
    Case("stream", own_streams, library_streams, (1, 3), 1e-12),
    Case("late_sgd", own_late, library_late, (1, 4), 1e-12),
    Case("delayed_averaging", own_averaging, library_averaging, (0, 1, 3, 6), 1e-12),
]


def check_change(names):
    """Versions in one array: wrong from three ranks on.  And the other answers."""
    from runpy import run_path
    right = run_path(names["__file__"])["stream"]

    def error(p, stream, per_step=1, late=None):
        weights, x, labels = data(p, 4)

        def body(comm):
            delay = comm.size - 1 - comm.rank if late is None else late
            return stream(comm, weights[comm.rank].copy(), x, labels, delay, per_step)
        expected = names["late_sgd"](
            lambda w, t: np.array(names["one_process"](
                w, *(a[t * per_step:][:per_step].reshape(-1, *a.shape[2:]) for a in (x, labels)))),
            weights, range(p)[::-1] if late is None else [late] * p, len(x) // per_step)[-1]
        return np.abs(np.array(Cluster(p).run(body)[0]) - expected).max(axis=(1, 2))
    assert max(error(4, right)) < 1e-12
    for p in (1, 2):
        assert max(error(p, names["stream"])) < 1e-12
    for p in (3, 4):
        assert min(error(p, names["stream"])) > 1e-3, "all ranks"
    says("32", "with one or two ranks nothing differs", "From three on rank 0 steps wrongly")
    for per_step in (3, 4):
        assert max(error(4, right, per_step, 1)) < 1e-12
    with pytest.raises(IndexError):
        error(4, right, 2, 1)
    says("32", "m ≥ p − 1. With fewer, that version is not there yet")
    limits = [2 * np.sin(np.pi / (4 * delay + 2)) for delay in range(16)]
    assert [round(limits[d], 3) for d in (0, 1, 2, 3, 7)] == [2, 1, 0.618, 0.445, 0.209]
    assert (round(limits[4], 3), round(limits[5], 3)) == (0.347, 0.285)
    assert [s for s in range(16) if limits[15 - s] < 0.3] == [*range(11)]
    for delay, momentum, most in ((0, 0.9, 3.8), (1, 0.9, 0.1), (1, 0.5, 0.5), (7, 0.9, 0.016),
                                  (7, 0, limits[7])):
        assert largest(delay, momentum, 0.97 * most) < 1 < largest(delay, momentum, 1.03 * most)
    says("32", "that is 3.8 and 0.1, and for D = 7 it is 0.016")
    says("32", "0.347 for D = 4 and 0.285 for D = 5", "stages 0 to 10 would diverge")


def largest(delay, momentum, a):
    """The largest |z| with w(t) = zᵗ and w(t+1) = w(t) + μ (w(t) − w(t−1)) − a w(t−D)."""
    powers = np.zeros(max(delay, 1) + 2)
    powers[:3] = 1, -1 - momentum, momentum
    powers[1 + delay] += a
    return abs(np.roots(powers)).max()
