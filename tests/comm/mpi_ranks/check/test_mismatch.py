"""Calls of collectives, compared by checksums that ranks send each other."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mpi.check.communicator import checksum
from minipar.comm.mpi.check.mismatch import Log, mismatch_report
from minipar.comm.simulated.mismatch import arguments_of


class Comm:
    def __init__(self, rank):
        self.world_rank = rank


def logs(num_ranks):
    comms = [Comm(rank) for rank in range(num_ranks)]
    return comms, [Log(comm, "world", range(num_ranks)) for comm in comms]


def call(log, operation, array=None, **options):
    log.queue.append((arguments_of(operation, array, None, options), (), "a.py:1"))


def exchange(logs):
    for log in logs:
        log.take({})
    for rank, log in enumerate(logs):
        news = log.news()
        for other in logs:
            if other is not log:
                other.theirs[rank] += news


def test_equal_calls_are_forgotten_and_the_first_that_differs_is_found():
    comms, ranks = logs(3)
    for n in range(5):
        for log in ranks:
            call(log, "all_reduce", np.ones(n), op="sum")
    exchange(ranks)
    assert [log.compare() for log in ranks] == [None] * 3
    assert all(not log.calls and log.is_settled() for log in ranks)
    for rank, log in enumerate(ranks):
        call(log, "all_reduce", np.ones(1), op="sum")
        call(log, "all_reduce", np.ones(1), op="max" if rank == 1 else "sum")
    exchange(ranks)
    for _ in range(3):                          # however often they look
        assert [log.compare() for log in ranks] == [6] * 3
    said = mismatch_report({rank: log.calls[6][1:] for rank, log in enumerate(ranks)}, [])
    assert said.startswith("collective mismatch: ranks differ in op\n  ranks 0, 2 called all_red")
    assert "rank 1 called all_reduce(dtype=float64, shape=(1,), op=max) at a.py:1" in said


def test_ranks_need_not_be_equally_far():
    comms, ranks = logs(2)
    for _ in range(3):
        call(ranks[0], "barrier")
    exchange(ranks)
    assert [log.compare() for log in ranks] == [None, None]
    assert [log.first_missing() for log in ranks] == [0, 0] and len(ranks[0].calls) == 3
    call(ranks[1], "barrier")
    exchange(ranks)
    assert [log.compare() for log in ranks] == [None, None]
    assert [log.first_missing() for log in ranks] == [1, 1] and [*ranks[0].calls] == [1, 2]
    said = mismatch_report({0: ranks[0].calls[1][1:]}, [1])
    assert said.endswith("rank 1 called nothing more at the end\nAll ranks of a communicator call "
                         "the same collectives in the same order, with equal arguments.")


def test_functions_are_equal_by_what_they_do():
    comms, ranks = logs(2)
    call(ranks[0], "all_reduce", op=lambda a, b, out: np.add(a, b, out=out))
    call(ranks[1], "all_reduce", op=lambda a, b, out: np.add(a, b, out=out))
    exchange(ranks)
    assert ranks[0].compare() is None
    call(ranks[0], "all_reduce", op=lambda a, b, out: np.add(a, b, out=out))
    call(ranks[1], "all_reduce", op=lambda a, b, out: np.multiply(b, a, out=out))
    exchange(ranks)
    assert ranks[0].compare() == 1


def test_the_sentence_is_that_of_the_simulated_cluster():
    from minipar.comm import CollectiveMismatch
    from minipar.comm.collectives import all_reduce
    try:
        Cluster(2).run(lambda comm: all_reduce(comm, np.ones(2), "max" if comm.rank else "sum"))
    except CollectiveMismatch as error:
        simulated = str(error)
    place = simulated.splitlines()[1].rpartition(" at ")[2]
    comms, ranks = logs(2)
    for rank, log in enumerate(ranks):
        call(log, "all_reduce", np.ones(2), op="max" if rank else "sum", algorithm="auto")
        log.take({})
    calls = {rank: [log.calls[0][1], place] for rank, log in enumerate(ranks)}
    assert mismatch_report(calls, []) == simulated


@pytest.mark.parametrize("size", [1, 7, 4000, 12000, 100_003])
def test_any_change_of_an_array_changes_its_checksum(size):
    for dtype in (np.float64, np.float32, np.int8, bool):
        array = np.ones(size, dtype)
        before = checksum(array)
        for place in (0, size // 2, -1):
            changed = array.copy()
            changed[place] = 0
            assert checksum(changed) != before == checksum(array)
    assert checksum(np.ones((0, 3))) == checksum(np.ones(0))
