"""Lesson 12; `size` is the number of microbatches."""

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from tests.lessons.algorithms import Case, says, waits


def pipeline_data(comm, m):
    """Weights of all ranks, samples and labels (m, rows, …)."""
    rng = np.random.default_rng(m)
    return (rng.standard_normal((comm.size, 16, 16)) / 4, rng.standard_normal((m, 4, 16)),
            rng.integers(0, 16, (m, 4)))


def run_stage(schedule, comm, m, names):
    weights, x, labels = pipeline_data(comm, m)
    stage = names["Stage"](comm, weights[comm.rank], x, labels)
    schedule(stage, m)
    for request in stage.sends:
        request.wait()
    return stage.weight.grad


def by_executor(name):
    def run(comm, m):
        from support.lesson_12 import library_gradients
        return library_gradients(comm, name, *pipeline_data(comm, m))[comm.rank]
    return run


CASES = [
    Case("gpipe", run_stage, by_executor("gpipe"), (1, 3, 8), 1e-14),
    Case("one_f_one_b", run_stage, by_executor("1f1b"), (1, 3, 8), 1e-14),
]
PARTS = {"Stage"}


def check_change(names):
    """1F1B hangs, with the circle that the page names; GPipe does not."""
    def run(schedule):
        width, rows, m = names["WIDTH"], names["ROWS"], names["M"]

        def body(comm):
            stage = names["Stage"](comm, np.eye(width), np.ones((m, rows, width)),
                                   np.zeros((m, rows), int))
            schedule(stage, m)
        Cluster(4).run(body)
    run(names["gpipe"])
    with pytest.raises(Deadlock) as report:
        run(names["one_f_one_b"])
    assert waits(report) == {0: ("send", 1), 1: ("send", 2), 2: ("send", 3), 3: ("send", 2)}
    says("12", "1F1B hangs. Rank 3 has done F0 and is in B0", "But rank 2 is in F1")
