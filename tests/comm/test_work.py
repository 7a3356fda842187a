"""Non-blocking collectives: equal results, overlap in virtual time, any order, errors."""

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.comm.collectives import all_gather, all_reduce, broadcast
from minipar.comm.work import progress, start_work
from minipar.testing.worlds import worlds


@worlds(1, 2, 3, 5, 8, mpi=(4,))
def test_the_result_is_that_of_the_blocking_function(world):
    def body(comm):
        mine = np.random.default_rng(comm.rank).normal(size=1000)
        work = start_work(all_reduce, comm, mine)
        for _ in range(3):
            work.test()
        blocking = all_reduce(comm, mine)       # at the same time, with messages of its own
        np.testing.assert_array_equal(work.wait(), blocking)
        assert work.test() and comm.rank_state.engine is None
    world.run(body)


@worlds(2, 3, 8, mpi=(4,))
def test_several_at_once_waited_for_in_another_order_on_every_rank(world):
    def body(comm):
        works = [start_work(all_reduce, comm, np.full(50 + i, i + comm.rank)) for i in range(6)]
        works.append(start_work(all_gather, comm, np.array([comm.rank])))
        order = np.random.default_rng(comm.rank).permutation(len(works))
        results = {int(i): works[i].wait() for i in order}
        total = sum(range(comm.size))
        for i in range(6):
            np.testing.assert_array_equal(results[i], np.full(50 + i, i * comm.size + total))
        np.testing.assert_array_equal(results[6].ravel(), np.arange(comm.size))
    world.run(body)


@worlds(2, 4, mpi=(4,))
def test_a_blocking_wait_moves_works_on(world):
    """Rank 0 stands in recv while the others can finish only if its Work goes on."""
    def body(comm):
        work = start_work(all_reduce, comm, np.ones(300_000))
        note = np.zeros(1)
        if comm.rank == 0:
            comm.recv(note, source=1, tag=7)
        assert work.wait()[0] == comm.size
        if comm.rank == 1:
            comm.send(note + 1, dest=0, tag=7)
        return comm.split(0).size
    assert set(world.run(body)) <= {world.size}


@worlds(2, 3, mpi=(4,))
def test_works_on_parts_of_a_communicator_and_a_split_while_they_run(world):
    def body(comm):
        whole = start_work(all_reduce, comm, np.full(1000, comm.rank))
        part = comm.split(comm.rank % 2)
        half = start_work(all_reduce, part, np.ones(10))
        assert half.wait()[0] == part.size
        assert whole.wait()[0] == sum(range(comm.size))
    world.run(body)


@worlds(2, mpi=(4,))
def test_an_error_surfaces_in_wait(world):
    def fails(comm, array):
        array += comm.rank
        raise KeyError("inside")

    def body(comm):
        work = start_work(fails, comm, np.zeros(1))
        assert work.test()
        with pytest.raises(KeyError, match="inside"):
            work.wait()
        with pytest.raises(ValueError, match="algorithm"):
            start_work(all_reduce, comm, np.ones(3), algorithm="none").wait()
        assert comm.rank_state.engine is None
    world.run(body)


@worlds(mpi=(4,))
def test_a_message_of_another_size_surfaces_in_wait(world):
    def misfit(comm, size):
        if comm.rank == 0:
            comm.send(np.ones(4), 1)
        if comm.rank == 1:
            comm.recv(np.ones(size), 0)

    def body(comm):
        works = [start_work(misfit, comm, 2), start_work(broadcast, comm, np.ones(2)),
                 start_work(misfit, comm, 8)]
        works[1].wait()
        for work in works[::2]:
            if comm.rank == 1:
                with pytest.raises(ValueError, match="receive buffer|must be equal"):
                    work.wait()
            else:
                work.wait()
    world.run(body)


def seconds(comm_seconds: float, compute: float, num_polls: int) -> float:
    """Virtual time of an all-reduce on 4 ranks under so much computation, polled so often."""
    n = 4000

    def main(comm):
        work = start_work(all_reduce, comm, np.ones(n, np.int8), algorithm="ring")
        for _ in range(num_polls):
            comm.report_compute("compute", int(compute / num_polls * 1e6), 0, 0.0)
            progress(comm)
        assert (work.wait() == 4).all()
    cluster = Cluster(4, latency=0, bandwidth=n * 6 / 4 / comm_seconds, flops_per_second=1e6)
    return cluster.run(main)[1]


@pytest.mark.parametrize("communication, compute", [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0)])
def test_it_overlaps_with_computation(communication, compute):
    alone = max(communication, compute)
    for num_polls in (10, 100, 1000):
        total = seconds(communication, compute, num_polls)
        grain = compute / num_polls
        # each of the 2(p-1) = 6 rounds may be found one poll late
        assert alone - 1e-9 <= total <= alone + 6 * grain + 1e-9
        assert total == seconds(communication, compute, num_polls)     # to the last bit
    assert seconds(communication, compute, 1) > alone + 0.3     # who never asks has no overlap


def test_one_work_alone_takes_the_time_of_the_blocking_function():
    def blocking(comm):
        all_reduce(comm, np.ones(1001), algorithm="ring")

    def waited(comm):
        start_work(all_reduce, comm, np.ones(1001), algorithm="ring").wait()
    for size in (2, 3, 8):
        assert Cluster(size).run(waited)[1] == Cluster(size).run(blocking)[1]


def test_asking_in_a_loop_ends():
    def main(comm):
        work = start_work(all_reduce, comm, np.ones(10))
        while not work.test():
            pass
        request = comm.irecv(np.empty(1), 0) if comm.rank else comm.isend(np.ones(1), 1)
        while not request.test():
            pass
        return work.wait()[0]
    assert Cluster(2).run(main)[0] == [2, 2]


def test_a_work_that_one_rank_forgets_is_a_deadlock_that_says_so():
    def main(comm):
        if comm.rank == 0:
            start_work(all_reduce, comm, np.ones(8)).wait()
    with pytest.raises(Deadlock, match=r"rank 0 waits to .* all_reduce.*test_work\.py"):
        Cluster(3).run(main)


def test_a_work_cannot_start_another():
    def outer(comm):
        return start_work(all_reduce, comm, np.ones(1)).wait()
    with pytest.raises(RuntimeError, match="cannot start another"):
        Cluster(2).run(lambda comm: start_work(outer, comm).wait())


def test_finally_runs_when_the_run_ends_before_a_work():
    ends = []

    def patient(comm):
        try:
            comm.recv(np.empty(1), 1 - comm.rank)
        finally:
            ends.append(comm.rank)

    def main(comm):
        work = start_work(patient, comm)
        if comm.rank == 1:
            raise ArithmeticError
        work.wait()
    with pytest.raises(ArithmeticError):
        Cluster(2).run(main)
    assert sorted(ends) == [0, 1]


def test_computation_inside_a_work_takes_the_ranks_own_time():
    def main(comm):
        start_work(lambda c: c.report_compute("inside", 1000, 0, 0.0), comm).wait()
    assert Cluster(1, flops_per_second=1000).run(main)[1] == 1.0


def test_a_work_must_use_the_communicator_it_was_given():
    def main(comm):
        start_work(lambda apart: comm.recv(np.empty(1), 1 - comm.rank), comm).wait()
    with pytest.raises(RuntimeError, match="must use the one it was given"):
        Cluster(2).run(main)


@worlds(3, 5, mpi=(4,))
def test_wait_any_takes_messages_as_they_come(world):
    def body(comm):
        if comm.rank != 0:
            comm.report_compute("compute", comm.size - comm.rank, 0, 0.0)  # last rank sends first
            comm.send(np.array([comm.rank]), 0)
            return
        outs = [np.zeros(1, int) for _ in range(comm.size)]
        requests = [comm.irecv(out, i) if i else None for i, out in enumerate(outs)]
        order = []
        while any(requests):
            order.append(comm.wait_any(requests))
            assert outs[order[-1]] == order[-1]
            requests[order[-1]] = None
        assert sorted(order) == list(range(1, comm.size))
        if comm.is_simulated:
            assert order == list(range(comm.size - 1, 0, -1))
        with pytest.raises(ValueError, match="at least one"):
            comm.wait_any(requests)
    world.run(body)


def test_wait_any_on_what_never_comes_is_a_deadlock():
    def main(comm):
        if comm.rank == 0:
            comm.wait_any([comm.irecv(np.empty(1), 1), comm.irecv(np.empty(1), 2)])
    with pytest.raises(Deadlock, match="rank 0 waits to receive from rank 1.*has returned"):
        Cluster(3).run(main)
