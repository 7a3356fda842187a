"""Time on a simulated cluster, to the last bit: latency, bandwidth, ports, work, order, eagerness.

Powers of two throughout, so that virtual seconds are exact: latency 1, bandwidth 8 bytes a second.
"""

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.comm.collectives import all_reduce

LATENCY, BANDWIDTH = 1.0, 8.0


def cluster(num_ranks: int, **options) -> Cluster:
    return Cluster(num_ranks, latency=LATENCY, bandwidth=BANDWIDTH, trace=True, **options)


def clocks(num_ranks: int, main, **options) -> list[float]:
    """Each rank's clock at the end of `main`."""
    def timed(comm):
        main(comm)
        return comm.now()
    results, seconds = cluster(num_ranks, **options).run(timed)
    assert seconds == max(results)
    return results


def test_a_message_takes_its_bytes_over_the_bandwidth_and_the_latency():
    def main(comm):
        if comm.rank == 0:
            comm.send(np.zeros(4), dest=1)                      # 32 bytes: 4 s
        else:
            comm.recv(np.zeros(4), source=0)
    assert clocks(2, main) == [5.0, 5.0]


def test_a_message_without_bytes_takes_the_latency():
    def main(comm):
        comm.sendrecv(np.zeros(0), 1 - comm.rank, np.zeros(0), 1 - comm.rank)
    assert clocks(2, main) == [1.0, 1.0]


@pytest.mark.parametrize("late", [0, 1])
def test_it_starts_when_both_are_there(late):
    def main(comm):
        if comm.rank == late:
            comm.report_compute("something", 0, 0, seconds=10.0)
        if comm.rank == 0:
            comm.send(np.zeros(1), dest=1)
        else:
            comm.recv(np.zeros(1), source=0)
    assert clocks(2, main, clock="wall") == [12.0, 12.0]


def test_two_messages_to_one_rank_share_its_port():
    def main(comm):
        if comm.rank:
            comm.send(np.zeros(2), dest=0)                      # 2 s each
        else:
            for request in [comm.irecv(np.zeros(2), source) for source in (1, 2)]:
                request.wait()
    assert clocks(3, main) == [5.0, 3.0, 5.0]


def test_two_messages_of_one_rank_share_its_port():
    def main(comm):
        if comm.rank == 0:
            for request in [comm.isend(np.zeros(2), dest) for dest in (1, 2)]:
                request.wait()
        else:
            comm.recv(np.zeros(2), source=0)
    assert clocks(3, main) == [5.0, 3.0, 5.0]


def test_both_directions_at_once():
    def main(comm):
        comm.sendrecv(np.zeros(2), 1 - comm.rank, np.zeros(2), 1 - comm.rank)
    assert clocks(2, main) == [3.0, 3.0]


def test_nobody_runs_ahead_of_a_rank_that_has_not_begun():
    """Ranks 0 and 1 play ping-pong for long; the message of rank 2 at time 0 does not wait."""
    def main(comm):
        if comm.rank < 2:
            for _ in range(8):
                comm.sendrecv(np.zeros(0), 1 - comm.rank, np.zeros(0), 1 - comm.rank)
        if comm.rank in (0, 2):
            comm.send(np.zeros(1), dest=3)
        elif comm.rank == 3:
            requests = [comm.irecv(np.zeros(1), source) for source in (0, 2)]
            requests[1].wait()
            assert comm.now() == 2.0
            requests[0].wait()
    assert clocks(4, main) == [10.0, 8.0, 2.0, 10.0]


def test_a_request_is_done_when_its_time_has_come():
    def main(comm):
        if comm.rank == 0:
            request = comm.irecv(np.zeros(1), source=1)
            comm.send(np.zeros(0), dest=2)                      # until 1 s; the other needs 2 s
            assert not request.test()
            comm.report_compute("something", 0, 0, seconds=1.0)
            assert request.test() and comm.now() == 2.0
            request.wait()
            assert comm.now() == 2.0
        elif comm.rank == 1:
            comm.send(np.zeros(1), dest=0)
        else:
            comm.recv(np.zeros(0), source=0)
    clocks(3, main, clock="wall")


def test_eager_sends_are_done_at_once():
    def main(comm):
        if comm.rank == 0:
            array = np.array([1.0])
            comm.send(array, dest=1)
            assert comm.now() == 0.0
            array[0] = 2.0                      # it was copied: this does not arrive
        else:
            out = np.zeros(1)
            comm.recv(out, source=0)
            assert out[0] == 1.0
    assert clocks(2, main, eager=9) == [0.0, 2.0]


def test_a_symmetric_send_is_unsafe_at_any_size_unless_it_is_eager():
    def main(comm):
        comm.send(np.zeros(1, np.int8), 1 - comm.rank)
        comm.recv(np.zeros(1, np.int8), 1 - comm.rank)
    with pytest.raises(Deadlock):
        cluster(2).run(main)
    with pytest.raises(Deadlock):
        cluster(2, eager=1).run(main)           # eager below 1 byte: only empty messages
    assert clocks(2, main, eager=2) == [1.125, 1.125]


def test_work_takes_model_time_or_wall_time():
    def main(comm):
        comm.report_compute("by FLOPs", 32, 8, seconds=100.0)             # 32 / 16, 8 / 4
        comm.report_compute("by bytes", 16, 8, seconds=100.0)
        return comm.now()
    device = {"flops_per_second": 16.0, "memory_bandwidth": 4.0}
    model, wall = Cluster(1, **device, trace=True), Cluster(1, **device, clock="wall")
    assert model.run(main) == ([4.0], 4.0)
    assert model.trace.spans == [(0, "by FLOPs", 0.0, 2.0), (0, "by bytes", 2.0, 4.0)]
    assert wall.run(main) == ([200.0], 200.0)


def test_split_is_a_meeting():
    def main(comm):
        comm.report_compute("something", 0, 0, seconds=float(comm.rank))
        assert comm.split(0).now() == 2.0
    assert clocks(3, main, clock="wall") == [2.0, 2.0, 2.0]


def test_the_trace_tells_all_of_it():
    def main(comm):
        if comm.rank == 0:
            comm.report_compute("something", 0, 0, seconds=3.0)
            with comm.labelled("greeting"):
                comm.send(np.zeros(4), dest=1)
        else:
            comm.recv(np.zeros(4), source=0)
    world = cluster(2, clock="wall")
    world.run(main)
    assert world.trace.messages == [(0, 1, 32, "greeting", 3.0, 3.0, 8.0)]
    assert world.trace.spans == [(0, "something", 0.0, 3.0)]


def test_two_runs_are_one_and_the_same():
    def main(comm):
        comm.report_compute("something", 1000 * comm.rank**2, 0, seconds=0.0)
        half = comm.split(comm.rank % 2, -comm.rank)
        return all_reduce(half, np.arange(17.0) * comm.rank).tolist(), comm.now()
    first, second = Cluster(7, trace=True), Cluster(7, trace=True)
    results = first.run(main)
    traced = first.trace.as_lists()
    assert second.run(main) == results and second.trace.as_lists() == traced
    assert first.run(main) == results and first.trace.as_lists() == traced     # once more


@pytest.mark.parametrize("options, said", [
    ({"num_ranks": 0}, "a cluster has at least 1 rank, not 0"),
    ({"num_ranks": 2, "clock": "sun"}, "clock is 'model' or 'wall', not 'sun'")])
def test_a_cluster_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Cluster(**options)
