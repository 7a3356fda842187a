"""One rank fails, and the others end with a report; each rank's state is its own."""

import contextvars
import gc
import traceback
import weakref

import numpy as np
import pytest

from minipar.comm import Cluster, Communicator, Deadlock
from minipar.comm.collectives import all_reduce

ONE = np.zeros(1)


class Unlucky(Exception):
    """An exception of the user's."""


def fail(comm):
    if comm.rank == 1:
        raise Unlucky("of all ranks, me")
    comm.recv(ONE, source=1)


def test_an_exception_ends_the_run_and_keeps_its_type_and_traceback():
    with pytest.raises(Unlucky, match="of all ranks, me") as error:
        Cluster(3).run(fail)
    assert error.value.__notes__ == ["on rank 1 of 3 simulated ranks"]
    assert traceback.extract_tb(error.tb)[-1].name == "fail"
    assert traceback.extract_tb(error.tb)[-1].line == 'raise Unlucky("of all ranks, me")'


def test_it_ends_ranks_that_have_not_begun():
    begun = []

    def main(comm):
        begun.append(comm.rank)
        raise Unlucky
    with pytest.raises(Unlucky):
        Cluster(3).run(main)
    assert begun == [0]


@pytest.mark.parametrize("cause", ["deadlock", "failure"])
def test_finally_blocks_run_and_their_communicator_refuses(cause):
    seen = []

    def main(comm):
        if comm.rank == 2 and cause == "failure":
            comm.recv(ONE, source=0)            # so that the others are blocked by then
            raise Unlucky
        try:
            if comm.rank == 0 and cause == "failure":
                comm.send(ONE, dest=2)
            comm.recv(ONE, source=comm.rank)
        finally:
            for call in (lambda: comm.send(ONE, dest=1), lambda: comm.recv(ONE, source=1),
                         lambda: comm.sendrecv(ONE, 1, ONE, 1), lambda: comm.split(0),
                         lambda: all_reduce(comm, ONE, algorithm="ring")):
                with pytest.raises(RuntimeError, match="this run is over"):
                    call()
            seen.append(comm.rank)
    with pytest.raises(Deadlock if cause == "deadlock" else Unlucky):
        Cluster(3).run(main)
    assert seen == ([0, 1, 2] if cause == "deadlock" else [0, 1])


def test_a_cleanup_that_fails_does_not_hide_the_cause():
    def main(comm):
        try:
            fail(comm)
        finally:
            if comm.rank == 0:
                raise KeyError("in the cleanup")
    with pytest.raises(Unlucky):
        Cluster(2).run(main)


def test_a_communicator_kept_beyond_its_run_refuses():
    (comm, _), _ = Cluster(2).run(lambda comm: comm)
    with pytest.raises(RuntimeError, match="this run is over"):
        comm.send(ONE, dest=1)


def test_a_cluster_runs_again_after_a_failure():
    cluster = Cluster(2, trace=True)
    with pytest.raises(Unlucky):
        cluster.run(fail)
    results, _ = cluster.run(lambda comm: all_reduce(comm, ONE + comm.rank, algorithm="ring")[0])
    assert results == [1.0, 1.0] and cluster.trace.num_sent() == 4


def test_sys_exit_on_one_rank_ends_all():
    def main(comm):
        if comm.rank == 1:
            raise SystemExit(3)
        comm.recv(ONE, source=1)
    with pytest.raises(SystemExit) as error:
        Cluster(2).run(main)
    assert error.value.code == 3


def test_context_variables_are_per_rank():
    variable = contextvars.ContextVar("variable", default="unset")
    token = variable.set("outside")

    def main(comm):
        assert variable.get() == "outside"
        variable.set(f"rank {comm.rank}")
        comm.sendrecv(ONE, (comm.rank + 1) % 3, np.zeros(1), (comm.rank - 1) % 3)
        return variable.get()
    assert Cluster(3).run(main)[0] == ["rank 0", "rank 1", "rank 2"]
    assert variable.get() == "outside"
    variable.reset(token)


def test_two_thousand_ranks_do_not_pile_up():
    def main(comm):
        token = np.zeros(1)
        if comm.rank:
            comm.recv(token, comm.rank - 1)
        token += comm.rank
        if comm.rank + 1 < comm.size:
            comm.send(token, comm.rank + 1)
        return depth(900) + token[0]

    def depth(levels: int) -> int:
        return depth(levels - 1) if levels else 0       # every rank has the whole stack for itself
    results, _ = Cluster(2000).run(main)
    assert results[-1] == 1999 * 2000 / 2


def test_ranks_one_after_the_other_are_a_deep_chain():
    """Rank 0 is received from by all, so each one's turn comes while another one blocks."""
    def main(comm):
        if comm.rank == 0:
            for source in range(comm.size - 1, 0, -1):
                comm.recv(np.zeros(1), source)
        else:
            comm.send(np.zeros(1), dest=0)
    Cluster(2000).run(main)


def test_a_run_leaves_nothing_behind_for_the_garbage_collector():
    arrays, traces = [], []

    def main(comm):
        array = np.zeros(5)
        arrays.extend(map(weakref.ref, (array, all_reduce(comm, array, algorithm="ring"))))
        traces.append(weakref.ref(comm.trace))
    collecting = gc.isenabled()
    gc.disable()
    try:
        cluster = Cluster(3, trace=True)
        cluster.run(main)
        assert [array() for array in arrays] == [None] * 6
        assert all(trace() for trace in traces)
        del cluster
        assert [trace() for trace in traces] == [None] * 3
    finally:
        if collecting:
            gc.enable()


def test_a_world_of_one():
    results = Cluster(1).run(lambda comm: (comm.rank, comm.size, comm.world_rank))
    assert results == ([(0, 1, 0)], 0.0)


@pytest.mark.parametrize("call", [
    lambda c: c.send(ONE, 0), lambda c: c.recv(ONE, 0), lambda c: c.split(0), lambda c: c.now()])
def test_a_communicator_comes_from_a_run(call):
    with pytest.raises(TypeError, match="comes from launch"):
        call(Communicator())
