"""The timeline shows what the trace says: rectangles as data, compared with the events."""

from collections import Counter

import numpy as np
import pytest

from minipar.comm import Cluster, Trace
from minipar.comm.collectives import all_reduce, broadcast
from minipar.comm.mesh import DeviceMesh
from minipar.train.loop import compute_gradients
from minipar.train.start import start_run
from minipar.train.tasks import make_task
from minipar.viz import Bar, draw_timeline, draw_timelines, side_by_side, timeline_bars
from minipar.viz.timelines import timeline
from minipar.viz.timelines.timeline import _looks
from tests.train.test_train import parse

SIGNATURE = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.fixture
def trace():
    def main(comm):
        comm.report_compute("Linear forward", int(1e6) * (comm.rank + 1), 0, 0.0)
        comm.report_compute("Gelu forward", int(1e6), 0, 0.0)
        comm.report_compute("Linear backward", int(2e6), 0, 0.0)
        comm.report_compute("Linear weights", int(2e6), 0, 0.0)
        all_reduce(comm, np.ones(1000))
        broadcast(comm, np.ones(10))
        comm.report_compute("AdamW optimizer", int(1e6), 0, 0.0)
    cluster = Cluster(4, trace=True)
    cluster.run(main)
    return cluster.trace


def bars_of(trace, rank, row, **options):
    return [bar for bar in timeline_bars(trace, **options) if (bar.rank, bar.row) == (rank, row)]


def test_computed_time_is_the_trace_s(trace):
    for rank in range(4):
        spent = Counter()
        for span in trace.named_spans():
            if span.rank == rank:
                phase = span.name.split()[1]
                spent["backward" if phase == "weights" else phase] += span.end - span.start
        drawn = Counter()
        for bar in bars_of(trace, rank, "compute"):
            drawn[bar.kind] += bar.end - bar.start
        waiting = drawn.pop("waiting")
        assert drawn == pytest.approx(spent, rel=1e-12)
        assert waiting == pytest.approx(trace.duration() - sum(spent.values()), rel=1e-9)


def test_neighbours_of_one_kind_are_one_bar_and_waiting_fills_the_rest(trace):
    bars = sorted(bars_of(trace, 3, "compute"), key=lambda bar: bar.start)
    assert [bar.kind for bar in bars] == ["forward", "backward", "waiting", "optimizer"]
    assert bars[0].start == 0
    assert all(a.end == b.start for a, b in zip(bars, bars[1:])), "a hole or an overlap"
    assert bars[-1].end == pytest.approx(trace.duration(), rel=1e-12)


def test_rows_never_overlap(trace):
    for resolution in (0.0, trace.duration() / 50):
        for rank in range(4):
            for row in ("compute", "messages"):
                bars = sorted(bars_of(trace, rank, row, resolution=resolution),
                              key=lambda bar: bar.start)
                assert bars
                assert all(bar.end > bar.start for bar in bars)
                assert all(a.end <= b.start for a, b in zip(bars, bars[1:]))


def test_message_bars_lie_where_messages_are(trace):
    for rank in range(4):
        for label in ("all_reduce", "broadcast"):
            sent = trace.select(rank, label)
            bars = [bar for bar in bars_of(trace, rank, "messages") if bar.kind == label]
            assert bool(sent) == bool(bars)
            if sent:
                assert bars[0].start == min(m.start for m in sent)
                assert bars[-1].end == max(m.end for m in sent)


def test_time_starts_at_the_first_event():
    trace = Trace(messages=[(0, 1, 8, "", 100.0, 100.5, 101.0)],
                  spans=[(1, "Linear forward", 101.0, 103.0)])
    assert timeline_bars(trace, num_ranks=3) == [
        Bar(0, "compute", "waiting", 0.0, 2.5), Bar(0, "messages", "message", 0.0, 0.5),
        Bar(1, "compute", "forward", 0.5, 2.5), Bar(1, "compute", "waiting", 0.0, 0.5),
        Bar(2, "compute", "waiting", 0.0, 2.5)]


def test_messages_under_way_together_share_the_row():
    trace = Trace(messages=[(0, 1, 8, "a", 0.0, 0.0, 2.0), (0, 2, 8, "b", 1.0, 1.0, 3.0),
                            (0, 3, 8, "b", 2.5, 2.5, 4.0)])
    assert [bar[2:] for bar in timeline_bars(trace) if bar.row == "messages"] == [
        ("a", 0.0, 2.0), ("b", 2.0, 4.0)]


def test_what_a_pipeline_s_messages_carry_is_the_kind_not_which_action_made_it():
    labels = ["0F0", "0F12", "1B0", "1I3", "all_reduce", "2F0 of mine"]
    trace = Trace(messages=[(0, 1, 8, label, 2 * i, 2 * i, 2 * i + 1)
                            for i, label in enumerate(labels)])
    assert [bar.kind for bar in timeline_bars(trace) if bar.row == "messages"] == [
        "activations", "activations", "gradients", "gradients", "all_reduce", "2F0 of mine"]


def test_gaps_are_closed_up_to_the_resolution():
    trace = Trace(spans=[(0, "x forward", 0.0, 1.0), (0, "y forward", 1.01, 2.0),
                         (0, "z forward", 3.0, 4.0)])
    assert timeline_bars(trace, resolution=0.02) == [
        Bar(0, "compute", "forward", 0.0, 2.0), Bar(0, "compute", "forward", 3.0, 4.0),
        Bar(0, "compute", "waiting", 2.0, 3.0)]
    assert len(timeline_bars(trace)) == 5


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_writes_a_picture_and_nothing_else(trace, tmp_path, suffix):
    path = draw_timeline(tmp_path / "deep" / f"step{suffix}", trace, "One step", num_ranks=5)
    assert path.read_bytes().startswith(SIGNATURE[suffix])
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_picture(trace, tmp_path):
    path = tmp_path / "step.unknown"
    path.write_text("old")
    with pytest.raises(ValueError, match="unknown"):
        draw_timeline(path, trace)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def num_colors(trace):
    looks = _looks(timeline_bars(trace))
    colors = {look["facecolor"] for look in looks.values()}
    assert len(colors) == len(looks)
    return len(colors)


def test_each_kind_has_a_colour_of_its_own():
    kinds = ["x forward", "x backward", "x optimizer", "sweep"]
    trace = Trace(messages=[(0, 1, 8, label, i, i, i + 1) for i, label in enumerate(("", "other"))],
                  spans=[(0, name, i, i + 0.5) for i, name in enumerate(kinds)])
    assert num_colors(trace) == 7               # waiting is the seventh
    mesh = ["0F0", "1I0", "control", "all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    trace.spans.pop()                                               # a step has phases alone
    trace.messages = [(0, 1, 8, label, i, i, i + 1) for i, label in enumerate(mesh)]
    assert num_colors(trace) == 11


@pytest.mark.slow
def test_thousands_of_spans(tmp_path):
    spans = [(rank, f"Linear {('forward', 'backward')[i % 2]}", i * 1e-3, i * 1e-3 + 9e-4)
             for rank in range(64) for i in range(50)]
    assert draw_timeline(tmp_path / "many.png", Trace(spans=spans)).stat().st_size > 10_000


def test_an_empty_trace_is_refused(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        draw_timeline(tmp_path / "t.png", Trace())


def test_runs_side_by_side_begin_together_and_end_apart(trace, tmp_path):
    """Each run is a lane from time 0, which waits until its own end and no longer."""
    late = Trace(messages=[(2, 3, 8, "", 7.0, 7.0, 7.5)],
                 spans=[(2, "Linear forward", 5.0, 6.0), (2, "Linear backward", 6.0, 7.0)])
    early = Trace(spans=[(2, "Linear forward", 0.0, 0.25)])
    together = side_by_side([late, early])
    assert timeline_bars(together, apart=True) == [
        Bar(0, "compute", "forward", 0.0, 1.0), Bar(0, "compute", "backward", 1.0, 2.0),
        Bar(0, "compute", "waiting", 2.0, 2.5), Bar(0, "messages", "message", 2.0, 2.5),
        Bar(1, "compute", "forward", 0.0, 0.25)]
    path = draw_timeline(tmp_path / "runs.svg", together, runs=["late", "early"])
    assert "rank 0" not in path.read_text(encoding="utf-8")


def test_several_runs_have_panels_of_their_own_and_one_scale_of_time(tmp_path, monkeypatch):
    """Ranks of a run wait until its own end; a short run takes a part of its panel."""
    figures = []
    monkeypatch.setattr(timeline, "save", lambda figure, path: figures.append(figure))
    short = Trace(messages=[(0, 1, 8, "", 1.0, 1.0, 1.25)],
                  spans=[(0, "Linear forward", 0.0, 1.0), (1, "Linear forward", 1.25, 2.0)])
    long = Trace(spans=[(0, "Linear backward", 3.0, 7.0)])
    draw_timelines(tmp_path / "runs.png", {"short": short, "long": long})
    first, second = figures[0].axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["short", "long"]
    assert first.get_xlim() == second.get_xlim() == (0, 4)
    ends = [path.vertices[:, 0].max() for drawn in first.collections for path in drawn.get_paths()]
    assert max(ends) == 2                                       # of the first run, not 4
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert sorted(labels) == ["backward", "forward", "messages", "waiting"]


def test_an_empty_run_among_several_is_refused(trace, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        draw_timelines(tmp_path / "t.png", {"some": trace, "none": Trace()})


def test_a_mesh_names_axes_and_places(tmp_path):
    """The same collective over two axes: two kinds of messages, and each rank says where it is."""
    def main(comm):
        mesh = DeviceMesh(comm, dp=2, ep=2, tp=2)
        for axis in ("dp", "tp", ("dp", "tp")):
            all_reduce(mesh[axis], np.ones(64))
        return mesh
    cluster = Cluster(4, trace=True)
    mesh = cluster.run(main)[0][0]
    over = {m.label for m in cluster.trace.select(label="all_reduce")}
    assert over == {"all_reduce over dp", "all_reduce over tp", "all_reduce over dp, tp"}
    for rank in range(4):
        kinds = {bar.kind for bar in bars_of(cluster.trace, rank, "messages")}
        assert {"all_reduce over tp", "all_reduce over dp, tp"} <= kinds
    drawn = draw_timeline(tmp_path / "mesh.svg", cluster.trace, mesh=mesh).read_text("utf-8")
    assert "rank 3" in drawn and "dp 1" in drawn and "over tp" in drawn


@pytest.mark.parametrize("words, labels", [
    ("--mesh tp=2,cp=2 --strategy fsdp", {"all_gather over cp", "reduce_scatter over cp",
                                          "broadcast over cp", "all_reduce over tp"}),
    ("--mesh dp=2,cp=2 --context-method ulysses", {"all_reduce over dp, cp", "all_to_all over cp",
                                                   "broadcast over dp, cp"}),
    ("--mesh dp=2,pp=2 --strategy fsdp", {"all_gather over dp", "reduce_scatter over dp",
                                          "broadcast over dp", "all_reduce over pp"})])
def test_every_collective_of_a_step_names_its_axes(words, labels):
    """Those over a copy of a communicator, and over a part of it, too."""
    config = parse("--data", "synthetic", "--ranks", "4", *words.split())

    def main(comm):
        compute_gradients(start_run(comm, config, make_task(config)), 0)
    cluster = Cluster(4, trace=True)
    cluster.run(main)
    found = {message.label for message in cluster.trace.select()}
    assert {label for label in found if "_" in label or "broad" in label} - {
        "ring_attention"} == labels
