"""The timeline in a terminal: each character is the state that takes most of its column's time."""

from collections import defaultdict

import pytest
from rich.console import Console

from minipar.comm import Cluster, Trace
from minipar.testing import worlds
from minipar.viz import TracedRun, timeline_in_terminal
from minipar.viz.timelines.bars import BLOCKED, COMPUTING, TRANSFER, states
from minipar.viz.timelines.terminal import ENDED, MARKS, START, axis, cells, share_rows
from tests.support.traced import check, trace_of

# Compute 0-4, a message 4-8, another from 8 on; rank 1 waits up to 4; rank 2 does its work late.
TRACE = Trace([(0, 1, 8, "", 4.0, 4.0, 8.0), (0, 1, 8, "", 8.0, 8.0, 16.0)],
              [(0, "x", 0.0, 4.0), (2, "y", 10.0, 12.0)])


def test_the_picture():
    lines = timeline_in_terminal(TRACE, width=7 + 32).plain.splitlines()
    assert lines == [
        "rank 0 ████████╞═══════╞═══════════════",
        "rank 1 ········╞═══════╞═══════════════",
        "rank 2 ····················████        ",
        "       0 s       5 s       10 s",
        "█ computing  ╞═ a message under way",
        "· blocked"]


def assert_cells_are_states(trace, groups, num_columns):
    """Against a slow count by definition."""
    bars = states(TracedRun("", trace).from_zero().trace, groups[-1][-1] + 1)
    duration, column = trace.duration(), trace.duration() / num_columns
    ends = defaultdict(float)
    for bar in bars:
        ends[bar.rank] = max(ends[bar.rank], bar.end)
    for group, row in zip(groups, cells(trace, groups, num_columns), strict=True):
        assert len(row) == num_columns
        for i, shown in enumerate(row):
            def inside(start, end, i=i):
                return max(0.0, min(end, (i + 1) * column) - max(start, i * column))
            spent = {state: sum(inside(b.start, b.end) for b in bars
                                if b.rank in group and b.kind == state) for state in MARKS}
            spent[ENDED] = sum(inside(ends[rank], duration) for rank in group)
            assert spent[shown] >= max(spent.values()) - 1e-6 * column, (group, i, spent)


@worlds(1, 2, 5, mpi=(2, 4))
def test_cells_are_the_states_of_the_trace(world):
    def body(comm):
        trace = trace_of(comm)
        if comm.rank == 0:
            if comm.size > 1:
                check(trace, comm.size)
            for num_columns in (10, 61):
                assert_cells_are_states(trace, share_rows(comm.size, 32), num_columns)
                assert_cells_are_states(trace, share_rows(comm.size, 2), num_columns)
    world.run(body)


def test_of_equal_states_computing_is_shown():
    trace = Trace([(0, 1, 8, "", 0.0, 0.0, 2.0)], [(0, "x", 0.0, 2.0)])
    assert cells(trace, [range(1), range(1, 2)], 2) == [[COMPUTING] * 2, [TRANSFER] * 2]


@pytest.mark.parametrize("width", [30, 41, 80, 200])
@pytest.mark.parametrize("num_ranks", [1, 3, 32, 33, 100, 1000])
def test_it_fits(width, num_ranks):
    lines = timeline_in_terminal(TRACE, width, num_ranks=num_ranks, max_rows=16).plain.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("rank")]
    assert len(rows) <= 16 and {len(row) for row in rows} == {width}
    assert sum(map(len, share_rows(num_ranks, 16))) == num_ranks


def test_ranks_share_rows():
    assert share_rows(5, 8) == [range(i, i + 1) for i in range(5)]
    assert share_rows(10, 4) == [range(3), range(3, 6), range(6, 9), range(9, 10)]
    text = timeline_in_terminal(TRACE, 60, num_ranks=10, max_rows=4).plain
    assert [line[:9].strip() for line in text.splitlines()[:4]] == [
        "ranks 0–2", "ranks 3–5", "ranks 6–8", "rank 9"]
    assert START not in text


def test_states_have_colours_of_their_own():
    console = Console(width=60, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(timeline_in_terminal(TRACE, 60))
    before = {capture.get().split(MARKS[s][0])[0].rpartition("\x1b[")[2]
              for s in (COMPUTING, TRANSFER, BLOCKED)}
    assert len(before) == 3 and len({MARKS[s][0] for s in MARKS}) == 4


def test_the_axis_has_round_times_at_their_places():
    line = axis(2.5e-3, 100)
    assert line.split("  ")[0] == "0 ms" and line.index("0.5 ms") == 20 and line.index("2 ms") == 80
    for duration in (1e-9, 3e-7, 0.123, 77.0, 5e4):
        for width in (10, 33, 150):
            assert len(axis(duration, width)) <= width
    assert axis(0.0, 50) == "0 ns"


def test_nothing_took_time():
    cluster = Cluster(2, latency=0, bandwidth=float("inf"), trace=True)
    cluster.run(lambda comm: comm.report_compute("x", 0, 0, 0.0))
    assert timeline_in_terminal(cluster.trace, 40).plain.startswith("rank 0")


def test_refusals():
    with pytest.raises(ValueError, match="empty"):
        timeline_in_terminal(Trace())
    with pytest.raises(ValueError, match="^a width of 29 characters .* give at least 30$"):
        timeline_in_terminal(TRACE, width=29)
