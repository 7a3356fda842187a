"""Replay: the same messages elsewhere take what the program itself would take there."""

from math import inf

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock, Trace
from minipar.comm.collectives import all_gather, all_reduce, all_to_all, broadcast, gather_object
from minipar.comm.simulated.links import Link, Links
from minipar.comm.simulated.replay import replay
from minipar.comm.work import start_work
from minipar.testing import worlds

SLOW = {"latency": 3e-4, "bandwidth": 1e6}


def mixed(comm):
    """Collectives, splits, overlap, tags, a straggler: everything whose order is fixed."""
    x = np.arange(37.0) + comm.rank
    comm.report_compute("forward", 10**6 * (1 + comm.rank % 3), 0, 0.0)
    all_reduce(comm, x)
    row = comm.split(comm.rank % 2, key=-comm.rank)
    all_gather(row, x)
    comm.split(None if comm.rank else 0)
    out = np.empty(1000)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sending = comm.isend(np.ones(1000), right, tag=3)
    receiving = comm.irecv(out, left, tag=3)
    comm.report_compute("backward", 10**7, 0, 0.0)
    receiving.wait()
    sending.wait()
    broadcast(comm, x, root=comm.size - 1)
    all_to_all(row, np.ones(2 * row.size))


def traced(num_ranks, program=mixed, **options):
    cluster = Cluster(num_ranks, trace="replay", **options)
    _, seconds = cluster.run(program)
    return cluster.trace, seconds


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
def test_on_the_same_cluster_the_same_time_and_trace(num_ranks):
    trace, seconds = traced(num_ranks)
    again = Cluster(num_ranks, trace="replay")
    assert replay(trace, again) == seconds
    strip = [m[:3] + m[4:] for m in trace.messages]                 # a replay has no labels
    assert [m[:3] + m[4:] for m in again.trace.messages] == strip
    assert again.trace.spans == trace.spans
    assert again.trace.programs == trace.programs
    assert again.trace.programs[0] and (num_ranks == 1 or strip)


@pytest.mark.parametrize("options", [
    SLOW, {"latency": 0.0, "bandwidth": inf}, {"eager": 10**6, **SLOW},
    {"links": Links(Link(1e-6, 1e11), Link(1e-3, 1e8), delay=1e-3, seed=7), "devices_per_node": 3}],
    ids=str)
def test_elsewhere_it_takes_what_the_program_takes_there(options):
    here, seconds = traced(6)
    _, there = traced(6, **options)
    assert replay(here, Cluster(6, **options)) == there
    assert there != seconds


def test_rounds_and_bytes_are_replays_on_extreme_links():
    trace, _ = traced(5, lambda comm: all_reduce(comm, np.ones(50), algorithm="ring"))
    assert replay(trace, Cluster(5, latency=1, bandwidth=inf)) == 2 * 4
    assert replay(trace, Cluster(5, latency=0, bandwidth=1)) == 2 * 4 * 10 * 8


def test_computation_can_be_scaled():
    trace, _ = traced(3, lambda comm: comm.report_compute("x", 10**6, 0, 0.0))
    assert replay(trace, Cluster(3), compute=2.5) == 2.5 * 1e-5
    assert replay(trace, Cluster(3), compute=0) == 0.0


def test_a_trace_survives_json_and_merging():
    trace, seconds = traced(4)
    import json
    copy = Trace.from_lists(json.loads(json.dumps(trace.as_lists())))
    assert copy == trace
    assert replay(copy, Cluster(4)) == seconds
    trace.clear()
    assert trace == Trace(programs={rank: [] for rank in range(4)}) != copy


def test_a_cluster_used_again_logs_only_its_last_run():
    cluster = Cluster(3, trace="replay")
    cluster.run(mixed)
    first = cluster.trace
    cluster.run(mixed)
    assert cluster.trace.programs == first.programs


def test_what_depends_on_time_is_refused():
    def with_work(comm):
        start_work(all_reduce, comm, np.ones(4)).wait()

    def with_test(comm):
        if comm.rank:
            comm.send(np.ones(4), 0)
        else:
            request = comm.irecv(np.empty(4), 1)
            while not request.test():
                pass

    def with_any(comm):
        if comm.rank:
            comm.send(np.ones(4), 0)
        else:
            comm.wait_any([comm.irecv(np.empty(4), 1)])
    refused = r"rank \d used a communicator .* not through start_work\(\)"
    with pytest.raises(ValueError, match=refused):
        replay(traced(2, with_work)[0], Cluster(2))
    for program in (with_test, with_any):
        with pytest.raises(ValueError, match="rank 0 asked whether something was done"):
            replay(traced(2, program)[0], Cluster(2))


@worlds(1, 3, mpi=(2,))
def test_programs_are_logged_only_when_asked_for(world):
    def body(comm):
        comm.start_trace()
        all_reduce(comm, np.ones(8))
        comm.report_compute("something", 3, 5, 0.0)
        trace = comm.stop_trace()
        assert trace.programs == {} and trace.spans
        with pytest.raises(ValueError, match=r'^the trace has no programs .* trace="replay"\) or '
                                             r"comm.start_trace\(replay=True\)$"):
            replay(trace, Cluster(comm.size))
    world.run(body)


def test_a_cluster_logs_programs_only_when_asked_for():
    cluster = Cluster(3, trace=True)
    cluster.run(mixed)
    assert cluster.trace.programs == {} and cluster.trace.messages
    asked, _ = traced(3)
    assert (asked.messages, asked.spans) == (cluster.trace.messages, cluster.trace.spans)
    with pytest.raises(ValueError, match="no programs"):
        replay(Trace(), Cluster(1))
    with pytest.raises(ValueError, match="True or 'replay', not 'all'"):
        Cluster(2, trace="all")


def test_other_numbers_of_ranks_are_refused():
    with pytest.raises(ValueError, match="programs of 3 ranks, the cluster 4 ranks"):
        replay(traced(3)[0], Cluster(4))


def test_a_hung_run_hangs_again():
    cluster = Cluster(2, trace="replay")
    for runs in (cluster.run, None):
        with pytest.raises(Deadlock, match="rank 0 waits to receive from rank 1"):
            if runs:
                runs(lambda comm: comm.recv(np.empty(3), 1 - comm.rank))
            else:
                replay(cluster.trace, Cluster(2))


@worlds(1, 3, mpi=(2, 4))
def test_a_trace_of_either_world_is_played(world):
    def body(comm):
        comm.start_trace(replay=True)
        part = comm.split(0, key=-comm.rank)
        all_reduce(part, np.ones(1000), algorithm="ring")
        comm.sendrecv(np.ones(3), (comm.rank + 1) % comm.size, np.empty(3),
                      (comm.rank - 1) % comm.size, tag=2)
        lists = gather_object(comm, comm.stop_trace().as_lists())
        if comm.rank == 0:
            p = comm.size
            trace = Trace.merged(map(Trace.from_lists, lists))
            ring = 2 * (p - 1) + 1
            assert replay(trace, Cluster(p, latency=1, bandwidth=inf), compute=0) == ring
    world.run(body)
