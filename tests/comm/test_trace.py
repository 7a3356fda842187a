"""Traces: what they answer, how ranks' traces are merged and written, and small values by JSON."""

import json

import numpy as np
import pytest

from minipar.comm import Cluster, Message, Span, Trace
from minipar.comm.collectives import all_reduce, gather_object
from minipar.testing import worlds

FIRST = Trace([(0, 1, 8, "all_reduce", 0.0, 0.5, 1.0), (0, 2, 4, "control", 1.0, 1.0, 2.0)],
              [(0, "MatMul forward", 2.0, 3.5)])
SECOND = Trace([(1, 0, 16, "all_reduce", 0.0, 0.25, 4.0), (1, 2, 32, "", 0.0, 0.0, 0.5)], [],
               receives=[(7, 1, 4, "other", 0.0, 1.0)])
BOTH = Trace.merged([FIRST, SECOND])


def test_merging_keeps_everything_and_changes_nothing():
    assert BOTH.messages == FIRST.messages + SECOND.messages and BOTH.spans == FIRST.spans
    assert len(SECOND.receives) == 1 and BOTH.receives == []
    assert len(FIRST.messages) == len(SECOND.messages) == 2
    assert Trace.merged([]) == Trace()


def test_selecting():
    assert BOTH.select() == [Message(*FIRST.messages[0]), *map(Message._make, SECOND.messages)]
    assert BOTH.select(label="control") == [Message(0, 2, 4, "control", 1.0, 1.0, 2.0)]
    assert [m.dest for m in BOTH.select(rank=1)] == [0, 2]
    assert BOTH.select(rank=1, label="all_reduce") == [Message(*SECOND.messages[0])]
    assert BOTH.select(rank=2) == []


def test_counting():
    assert (BOTH.bytes_sent(), BOTH.num_sent()) == (56, 3)
    assert (BOTH.bytes_sent(0), BOTH.num_sent(0)) == (8, 1)
    assert (BOTH.bytes_sent(label="control"), BOTH.num_sent(label="control")) == (4, 1)
    assert BOTH.bytes_sent(1, "all_reduce") == 16


def test_duration_is_from_the_first_start_to_the_last_end():
    assert FIRST.duration() == 3.0 and SECOND.duration() == BOTH.duration() == 4.0
    assert Trace().duration() == 0.0


def test_first_is_the_earliest_start_not_the_earliest_send():
    assert (FIRST.first(), SECOND.first(), Trace().first()) == (0.5, 0.0, 0.0)


def test_spans_by_name():
    assert BOTH.named_spans() == [Span(0, "MatMul forward", 2.0, 3.5)]


def test_there_and_back_through_json():
    for trace in (BOTH, SECOND):
        assert Trace.from_lists(json.loads(json.dumps(trace.as_lists()))) == trace


def test_clearing():
    trace = Trace.merged([BOTH])
    trace.clear()
    assert trace == Trace()


@worlds(1, 2, 3)
def test_tracing_can_be_switched_on_and_off(world):
    def body(comm):
        part = comm.split(0)
        all_reduce(comm, np.ones(3), algorithm="ring")
        assert comm.trace is None
        comm.start_trace()
        all_reduce(part, np.ones(3), algorithm="ring")     # logged, on whichever communicator
        comm.report_compute("something", 3, 5, 0.0)
        assert comm.trace is part.trace
        trace = comm.stop_trace()
        assert comm.trace is None
        all_reduce(comm, np.ones(3), algorithm="ring")
        assert trace.num_sent(comm.rank) == len(trace.messages) == 2 * (comm.size - 1)
        assert [span.name for span in trace.named_spans()] == ["something"]
        assert all(m.posted <= m.end and m.start <= m.end for m in trace.select())
        lists = gather_object(comm, trace.as_lists(), root=comm.size - 1)
        if comm.rank == comm.size - 1:
            merged = Trace.merged(map(Trace.from_lists, lists))
            assert merged.num_sent() == 2 * (comm.size - 1) * comm.size
            assert merged.bytes_sent() == 2 * (comm.size - 1) * 24
    world.run(body)


@worlds(2, mpi=(2,))
def test_a_message_starts_when_both_ranks_have_begun(world):
    """Of two sends the second is received first: so the first waits for its receiver."""
    def body(comm):
        comm.start_trace()
        late, early = np.zeros(1), np.zeros(2)
        if comm.rank == 0:
            requests = [comm.isend(late, 1, tag=1), comm.isend(early, 1, tag=2)]
            for request in requests:
                request.wait()
        else:
            comm.recv(early, 0, tag=2)
            comm.report_compute("between", 10**6, 0, 1e-5)
            before = comm.now()
            comm.recv(late, 0, tag=1)
        trace = comm.stop_trace()
        lists = gather_object(comm, trace.as_lists(), root=1)
        if comm.rank == 1:
            merged = Trace.merged(map(Trace.from_lists, lists))
            first, second = sorted(merged.select(), key=lambda m: m.num_bytes)
            assert (first.source, first.dest, first.num_bytes, second.num_bytes) == (0, 1, 8, 16)
            assert second.posted <= second.start <= second.end <= before
            assert first.posted <= before <= first.start <= first.end
            assert merged.receives == [] and Trace.merged([merged]) == merged
    world.run(body)


def test_halves_are_joined_in_the_order_of_their_beginning():
    sent = Trace([(0, 1, 8, "a", 5.0, 5.0, 5.5), (0, 1, 8, "a", 3.0, 3.0, 3.5),
                  (0, 1, 4, "a", 4.0, 4.0, 4.5), (0, 1, 8, "b", 6.0, 6.0, 6.5)])
    received = Trace(receives=[(0, 1, 8, "a", 4.0, 7.0), (0, 1, 8, "a", 2.0, 6.0),
                               (0, 1, 8, "a", 0.0, 1.0),        # of a message from before the log
                               (2, 1, 8, "b", 6.0, 7.0)])
    assert Trace.merged([sent, received]).messages == [
        (0, 1, 8, "a", 5.0, 5.0, 7.0), (0, 1, 8, "a", 3.0, 3.0, 6.0),
        (0, 1, 4, "a", 4.0, 4.0, 4.5), (0, 1, 8, "b", 6.0, 6.0, 6.5)]


def test_a_cluster_traces_only_when_asked():
    cluster = Cluster(2)
    cluster.run(lambda comm: all_reduce(comm, np.ones(2), algorithm="ring"))
    assert cluster.trace == Trace()


VALUES = [{"text": "é\n☃", "list": [1, 2.5, None, True]}, [], "", 0, {"long": "x" * 10_000}]


@worlds(1, 2, 3, 5)
@pytest.mark.parametrize("root", [0, -1])
def test_gathering_objects(world, root):
    def body(comm):
        gathered = gather_object(comm, VALUES[comm.rank], root % comm.size)
        if comm.rank == root % comm.size:
            assert gathered == VALUES[:comm.size]
        else:
            assert gathered is None
    world.run(body)
