"""What the pictures hold, read back from the figures: every line, rectangle and arrow of the trace,
and nothing else."""

from collections import Counter

import numpy as np
import pytest

from minipar.comm import Trace
from minipar.testing import worlds
from minipar.units import in_bytes, time_unit
from minipar.viz import (
    EndlessWait,
    TracedRun,
    draw_space_time,
    draw_timeline,
    timeline_bars,
)
from minipar.viz.timelines import bars, space_time, timeline
from minipar.viz.timelines.bars import WAITING
from minipar.viz.timelines.timeline import ROWS
from tests.support.traced import trace_of


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, in order; nothing is written."""
    drawn = []
    for module in (space_time, timeline):
        monkeypatch.setattr(module, "save", lambda figure, path: drawn.append(figure))
    return drawn


def near(*numbers) -> tuple:
    """Numbers that can be compared although they were scaled and shifted."""
    return tuple(float(f"{number:.6g}") if abs(number) > 1e-9 else 0.0 for number in numbers)


def arrows_of(axes, scale=1.0) -> Counter:
    """(from, to) of each arrow; a picture's seconds times `scale`."""
    return Counter(near(*np.ravel((a.xyann, a.xy)) * (scale, 1, scale, 1))
                   for a in axes.texts if hasattr(a, "xyann"))


def assert_space_time(figure, trace) -> None:
    axes, = figure.axes
    first = min(e[-2] for e in trace.messages + trace.spans)
    _, scale = time_unit(trace.duration())          # compared in the unit that shows most digits

    def shown(time):
        return (time - first) * scale
    messages = trace.select() + trace.select(label="control")
    assert arrows_of(axes, scale) == Counter(
        near(shown(m.start), m.source, shown(m.end), m.dest) for m in messages)
    labels = Counter(t.get_text() for t in axes.texts if not hasattr(t, "xyann"))
    assert labels and labels <= Counter(in_bytes(m.num_bytes) for m in messages)

    by_color = {look["color"]: kind for kind, look in space_time.LOOKS.items()}
    lines = {kind: [] for kind in space_time.LOOKS}
    for line in axes.lines:
        (rank, same), (start, end) = line.get_ydata(), np.multiply(line.get_xdata(), scale)
        assert rank == same
        lines[by_color[line.get_color()]].append((rank, start, end))
    rest = dict(lines)                  # what is no event: the blocked time, which fills the gaps
    for kind, events in (
            (bars.COMPUTING, [(s.rank, s.start, s.end) for s in trace.named_spans()]),
            (bars.TRANSFER, [(r, m.start, m.end) for m in messages for r in m[:2]])):
        assert union(rest.pop(kind)) == union([(r, shown(s), shown(e)) for r, s, e in events])
    assert set(rest) == {bars.BLOCKED}
    covered = union([line for kind in lines for line in lines[kind]])
    last = {r: max(e[-1] for e in trace.messages + trace.spans
                   if e[0] == r or len(e) == 7 and e[1] == r) for r, *_ in covered}
    assert covered == union([(r, 0.0, shown(end)) for r, end in last.items()])


def union(intervals: list) -> set[tuple]:
    """The (rank, start, end) as few as cover the same."""
    found = []
    for rank, start, end in sorted(intervals):
        if found and found[-1][0] == rank and start <= found[-1][2] + 1e-6:
            found[-1] = (rank, found[-1][1], max(end, found[-1][2]))
        elif end > start + 1e-6:
            found.append((rank, start, end))
    return {near(*interval) for interval in found}


@worlds(2, 3, mpi=(2, 3))
def test_space_time(world, figures):
    def body(comm):
        trace = trace_of(comm)
        if comm.rank == 0:
            draw_space_time("unused.png", TracedRun("a run", trace))
            assert_space_time(figures.pop(), trace)
    world.run(body)


def test_space_time_of_two_runs_starts_each_at_zero(figures):
    late = Trace([(0, 1, 8, "", 7.0, 7.5, 9.0)], [(0, "x", 7.0, 7.25)])
    early = Trace([(0, 1, 8, "", 0.0, 0.5, 2.0)], [(0, "x", 0.0, 0.25)])
    waits = [EndlessWait(0, "send to", 1, "tag 0, 8 bytes", 9.0)]
    draw_space_time("unused.png", TracedRun("", late), TracedRun("", early),
                    TracedRun("", late, waits))
    first, second, third = figures.pop().axes
    assert arrows_of(first) == arrows_of(second) == Counter([near(0.5, 0, 2.0, 1)])
    assert near(2.0, 0) in {arrow[:2] for arrow in arrows_of(third)}     # the dashed one


def test_sizes_are_written_where_they_do_not_cover_each_other(figures):
    apart = Trace([(0, 1, 8 + i, "", i, i, i + 1) for i in range(5)])
    close = Trace([(0, 1, 8 + i, "", i, i, i + 1) for i in range(50)])
    draw_space_time("unused.png", TracedRun("", apart))
    draw_space_time("unused.png", TracedRun("", close))
    for figure, shown in zip(figures, (range(5), range(0, 50, 4))):
        texts = [t.get_text() for t in figure.axes[0].texts if not hasattr(t, "xyann")]
        assert texts == [f"{8 + i} B" for i in shown]


def test_many_messages_have_no_labels(figures):
    trace = Trace([(0, 1, 8, "", i, i, i + 1) for i in range(space_time.MOST_LABELS + 1)])
    draw_space_time("unused.png", TracedRun("", trace))
    axes, = figures.pop().axes
    assert sum(arrows_of(axes).values()) == len(axes.texts) == len(trace.messages)


@worlds(2, 3, mpi=(2, 3))
def test_timeline(world, figures):
    def body(comm):
        trace = trace_of(comm)
        if comm.rank == 0:
            draw_timeline("unused.png", trace)
            assert_timeline(figures.pop(), trace)
    world.run(body)


def assert_timeline(figure, trace) -> None:
    axes, = figure.axes
    first, (_, scale) = trace.first(), time_unit(trace.duration())
    drawn = Counter()
    for collection in axes.collections:
        for path in collection.get_paths():
            (left, top), (right, bottom) = path.get_extents().get_points()
            drawn[near(left * scale, right * scale, top, bottom)] += 1
    expected = timeline_bars(trace, resolution=trace.duration() / 1000)
    assert drawn == Counter(
        near(b.start * scale, b.end * scale, b.rank + ROWS[b.row][0], b.rank + sum(ROWS[b.row]))
        for b in expected)

    messages = trace.select() + trace.select(label="control")
    # Bars are the events: their union, when nothing short is left out.
    exact = timeline_bars(trace)
    for row, events in (("compute", [(s.rank, s.start, s.end) for s in trace.named_spans()]),
                        ("messages", [(m.source, m.start, m.end) for m in messages])):
        of_row = [(b.rank, b.start * scale, b.end * scale) for b in exact
                  if b.row == row and b.kind != WAITING]
        assert union(of_row) == union([(r, (s - first) * scale, (e - first) * scale)
                                       for r, s, e in events])
