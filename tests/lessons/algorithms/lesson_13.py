"""Lesson 13; on p ranks `size` times p microbatches."""

import numpy as np

from minipar.comm import Cluster
from minipar.parallel.pipeline.schedule.registry import make_schedule
from tests.lessons.algorithms import Case, says

SOME, KINDS = (1, 2, 3), "FBIW"


def support():
    from support import lesson_13
    return lesson_13


def as_numbers(rows):
    """Rows of actions as arrays (kind, stage, microbatch)."""
    return [np.array([(KINDS.index(kind), stage, i) for kind, stage, i in row]) for row in rows]


def by_name(name, **options):
    return lambda comm, size: as_numbers(make_schedule(name, comm.size, size * comm.size,
                                                       **options)[0])


def run_rows(function, comm, size, names):
    """Gradients by both schedules."""
    p, m, found = comm.size, size * comm.size, []
    for v, row in ((2, names["interleaved"](p, m, 2, comm.rank)),
                   (1, names["zb_h1"](p, m, comm.rank))):
        grads = function(comm, row, *support().values(p, v, m))
        found += [grads[s] for s in sorted(grads)]
    return found


def by_executor(comm, size):
    p, m, found = comm.size, size * comm.size, []
    for name, v in (("interleaved", 2), ("zb_h1", 1)):
        found += support().library_gradients(comm, name, *support().values(p, v, m))[comm.rank::p]
    return found


CASES = [
    *[Case("interleaved", lambda function, comm, size, names, v=v: as_numbers(
        [function(comm.size, size * comm.size, v, r) for r in range(comm.size)]),
        by_name("interleaved", virtual_stages=v), SOME) for v in (2, 3)],
    Case("zb_h1", lambda function, comm, size, names: as_numbers(
        [function(comm.size, size * comm.size, r) for r in range(comm.size)]),
        by_name("zb_h1"), SOME),
    Case("run", run_rows, by_executor, SOME, 1e-13),
]


def check_change(names):
    """The bubble is (p - 1)(F + I); p - r microbatches are in flight; the gradients are right."""
    for p, m in ((2, 4), (4, 8), (8, 16)):
        schedule = [names["zb_h1"](p, m, r) for r in range(p)]
        assert np.isclose(support().bubble_of(schedule, 1), 2 * (p - 1) / (3 * m))
        for r, row in enumerate(schedule):
            held = np.cumsum([{"F": 1, "I": 0, "W": -1}[kind] for kind, *_ in row])
            assert held.max() == p - r

    def body(comm):
        given = support().values(4, 1, 8)
        grads = names["run"](comm, names["zb_h1"](4, 8, comm.rank), *given)
        right = names["one_process"](given[0], given[1].reshape(-1, 8), given[2].ravel())
        return np.abs(grads[comm.rank] - right[comm.rank]).max()
    assert max(Cluster(4).run(body)[0]) < 1e-14
    says("13", "the bubble is 2 (p − 1) F", "That is half of what ZB-H1 saves",
         "rank r keeps p − r microbatches")
