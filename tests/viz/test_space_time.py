"""The space-time diagram: who was blocked, when; also in a run that hung."""

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock, Trace
from minipar.viz import EndlessWait, TracedRun, draw_space_time, waits_of
from minipar.viz.timelines.bars import BLOCKED, COMPUTING, TRANSFER, states


def token_ring(comm):
    token = np.zeros(1000)
    comm.report_compute("compute", int(1e5), 0, 0.0)
    if comm.rank:
        comm.recv(token, comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send(token, comm.rank + 1)


def spans_of(bars, rank, kind):
    return [(bar.start, bar.end) for bar in bars if (bar.rank, bar.kind) == (rank, kind)]


def test_a_rank_is_blocked_until_its_message_starts():
    cluster = Cluster(3, trace=True)
    cluster.run(token_ring)
    first, second = cluster.trace.select()
    bars = states(cluster.trace)
    assert spans_of(bars, 2, BLOCKED) == [(1e-6, second.start)]
    assert spans_of(bars, 2, TRANSFER) == [(second.start, second.end)]
    assert spans_of(bars, 0, BLOCKED) == []
    for rank in range(3):
        assert spans_of(bars, rank, COMPUTING) == [(0.0, 1e-6)]
    assert spans_of(bars, 1, TRANSFER) == [(first.start, second.end)]


def test_a_hung_run_has_its_waits(tmp_path):
    def hang(comm):
        token_ring(comm)
        comm.recv(np.zeros(3), (comm.rank + 1) % comm.size, tag=7)
    cluster = Cluster(3, trace=True)
    with pytest.raises(Deadlock) as caught:
        cluster.run(hang)
    clocks = [rank.clock for rank in cluster.ranks]
    waits = waits_of(str(caught.value), clocks)
    assert waits == [EndlessWait(r, "receive from", (r + 1) % 3, "tag 7, 24 bytes", clocks[r])
                     for r in range(3)]
    assert clocks[0] > 0
    bars = states(cluster.trace, waits=waits)
    assert spans_of(bars, 0, BLOCKED) == [(clocks[0], clocks[2])]
    path = draw_space_time(tmp_path / "hung.svg", TracedRun("It hangs", cluster.trace, waits))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text().startswith("<?xml")


def test_a_hang_before_anything_happened(tmp_path):
    waits = [EndlessWait(0, "send to", 1, "tag 0, 8 bytes", 0.0)]
    runs = TracedRun("nothing", Trace(), waits), TracedRun("empty", Trace(), num_ranks=2)
    assert draw_space_time(tmp_path / "start.png", *runs).read_bytes().startswith(b"\x89PNG")


def test_a_run_without_events_is_one_empty_lane(tmp_path):
    run = TracedRun("one rank, no message", Trace())
    assert run.size() == 1
    assert draw_space_time(tmp_path / "empty.png", run).stat().st_size > 1000
