"""The drawing of a pipeline: its rectangles are the timeline's, as picture, text and trace."""

import json
import os

import numpy as np
import pytest

from minipar.atomic_files import write_text
from minipar.comm.simulated.links import Link
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate, simulate_until
from minipar.parallel.pipeline.schedule.timeline import Timeline
from minipar.parallel.pipeline.schedule.validate import find_fault
from minipar.viz import draw_pipeline, pipeline_in_terminal, write_perfetto
from minipar.viz.timelines import pipeline
from minipar.viz.timelines.pipeline import FLOOR, HEIGHT, IDLE, ROOM, TOP, boxes, pipeline_figure

BAD = {"deadlock": "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "double": "0F0,0F0,0B0\n1F0,1B0\n",
       "out of order": "0B0,0F0\n1F0,1B0\n", "missing": "0F0,0B0\n1F0\n"}


def simulated(name, p=4, m=8, later=0.0, **options):
    schedule, placement = make_schedule(name, p, m)
    timeline = simulate(schedule, Times(1, 2, 1), placement, **options)
    return Timeline(p, [i._replace(start=i.start + later, end=i.end + later)
                        for i in timeline.intervals],
                    [m._replace(start=m.start + later, end=m.end + later)
                     for m in timeline.messages])


@pytest.mark.parametrize("name", SCHEDULES)
def test_boxes_are_the_actions_and_the_idle_time_between_them(name):
    timeline = simulated(name, later=1000.0)        # a real rank's clock does not begin at 0
    found = boxes(timeline)
    assert sorted((b.rank, b.kind, b.microbatch, b.start + 1000, b.end + 1000)
                  for b in found if b.kind != IDLE) == sorted(
        (i.rank, i.kind, i.microbatch, i.start, i.end) for i in timeline.intervals)
    for rank in range(4):
        row = [box for box in found if box.rank == rank]
        assert row[0].start == 0 and row[-1].end == timeline.makespan()
        assert all(a.end == b.start for a, b in zip(row, row[1:])), "a hole or an overlap"
    stages = {(i.rank, i.stage) for i in timeline.intervals}
    assert len({(b.rank, b.nth) for b in found}) == len(stages)


@pytest.mark.parametrize("name", SCHEDULES)
def test_drawn_rectangles_are_the_boxes(name):
    timeline = simulated(name, link=Link(0.25, 1e3), message_bytes=100)
    [axes] = pipeline_figure({"": timeline}).axes
    drawn = []
    for collection in axes.collections:
        if collection.get_gid() == "boxes":
            for path in collection.get_paths():
                (left, top), (right, bottom) = path.vertices.min(0), path.vertices.max(0)
                assert bottom - top == pytest.approx(HEIGHT)
                drawn.append((round(top - TOP), left, right))
    assert np.allclose(sorted(drawn), sorted((b.rank, b.start, b.end) for b in boxes(timeline)))
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert np.allclose(sorted((a.xyann[0], a.xy[0]) for a in arrows),
                       sorted((m.start, m.end) for m in timeline.messages))
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    has_room = timeline.makespan() < 120            # for the numbers in the narrowest boxes, too
    assert len(numbers) == len(timeline.intervals) or not has_room


def test_the_picture_says_makespan_bubble_and_peaks():
    [axes] = pipeline_figure({"1F1B": simulated("1f1b")}).axes
    assert axes.get_title("left") == ("1F1B\nmakespan 44 s, bubble 27.3% of the total, 37.5% of "
                                      "the ideal")
    said = [text.get_text() for text in axes.texts]
    assert [text for text in said if "peak" in text] == [f"peak {n}" for n in (4, 3, 2, 1)]
    [axes] = pipeline_figure({"": simulated("1f1b")}, [3e6, 2e6, 1e6, 5e5]).axes
    said = [text.get_text() for text in axes.texts if "peak" in text.get_text()]
    assert said == ["peak 12 MB", "peak 6 MB", "peak 2 MB", "peak 500 kB"]


@pytest.mark.parametrize("kind", BAD)
def test_a_fault_is_framed_where_the_validator_points(kind):
    schedule = from_csv(BAD[kind])
    fault = find_fault(schedule, [0, 1], 1 + (kind == "deadlock"))
    assert fault.kind == kind
    done = simulate_until(fault, schedule, Times(1, 1, 1))
    [axes] = pipeline_figure({"mine": done}, fault=fault).axes
    frames = [patch for patch in axes.patches if patch.get_gid() == "fault"]
    assert [round(frame.get_y() - TOP) for frame in frames] == [
        rank for rank, _ in ((fault.rank, fault.position), *fault.others)]
    row = done.row(fault.rank)          # it stands where the rank's last action ends
    assert frames[0].get_x() == (row[-1].end if row else 0)
    assert fault.sentence in axes.get_title("left").replace("\n", " ")


@pytest.mark.parametrize(("m", "edged"), [(8, True), (600, False)])
def test_many_narrow_boxes_are_not_hidden_by_their_edges(m, edged):
    [axes] = pipeline_figure({"": simulated("gpipe", 2, m)}).axes
    widths = {float(width) for drawn in axes.collections if drawn.get_gid() == "boxes"
              and not drawn.get_hatch() for width in drawn.get_linewidth()}
    assert widths == {0.6 if edged else 0.0}


def test_what_is_no_file_is_written_but_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(tmp_path / "pipe", "0F0")
        assert os.read(reader, 10) == b"0F0" and (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_files_are_written(tmp_path):
    for suffix in (".png", ".svg"):
        path = draw_pipeline(tmp_path / f"a{suffix}", simulated("zb_v"))
        assert path.stat().st_size > 10_000
    with pytest.raises(ValueError, match="nothing was done"):
        draw_pipeline(tmp_path / "b.png", Timeline(2))


def test_the_terminal_shows_the_same():
    text = str(pipeline_in_terminal(simulated("1f1b"), 60))
    assert text.splitlines()[:4] == [
        "rank 0 0123·········0══41══52══63══74══·5══·6══·7══ peak 4",
        "rank 1 ·012······0══31══42══53══64══75══·6══·7══··· peak 3",
        "rank 2 ··01···0══21══32══43══54══65══76══·7══······ peak 2",
        "rank 3 ···00══11══22══33══44══55══66══77══········· peak 1"]
    assert text.endswith("─ forward  ═ backward  · idle  digits: microbatches")
    crowded = str(pipeline_in_terminal(simulated("gpipe", 2, 100), 60))     # 404 units of time
    assert crowded.splitlines()[:2] == ["rank 0 " + "─" * 11 + "═" * 33 + " peak 100",
                                        "rank 1 " + "─" * 11 + "═" * 33 + " peak 100"]
    assert crowded.endswith("─ forward  ═ backward  · idle")
    for name in SCHEDULES:
        timeline = simulated(name, 5, 7)
        for width in (40, 63, 200):
            lines = str(pipeline_in_terminal(timeline, width)).splitlines()[:5]
            assert max(map(len, lines)) <= width and len({len(x.split("peak")[0])
                                                          for x in lines}) == 1
    assert len(str(pipeline_in_terminal(simulated("1f1b", 9, 2), 80, 4)).splitlines()) == 5
    with pytest.raises(ValueError, match="a width of 20 characters leaves no room"):
        pipeline_in_terminal(timeline, 20)
    with pytest.raises(ValueError, match="nothing was done"):
        pipeline_in_terminal(Timeline(2))


def test_a_trace_for_perfetto_has_every_action_and_message(tmp_path):
    timeline = simulated("zb_h1", 3, 4, link=Link(0.5, 1e3), message_bytes=100)
    path = write_perfetto(tmp_path / "a.json", timeline.as_trace())
    events = json.loads(path.read_text())["traceEvents"]
    computed = [(e["pid"] - 1, e["name"], e["ts"], e["dur"]) for e in events
                if e.get("cat") == "compute"]
    assert sorted(computed) == [
        (rank, name, pytest.approx(start), pytest.approx(length))
        for rank, name, start, length in sorted((i.rank, str(i.action), i.start * 1e6,
                                                 (i.end - i.start) * 1e6)
                                                for i in timeline.intervals)]
    assert sum(e["ph"] == "s" for e in events) == len(timeline.messages)


def test_runs_drawn_together_have_one_scale_of_memory(monkeypatch):
    """1F1B keeps p microbatches of 2 bytes, GPipe m of 1: the highest peak has all the room."""
    drawn = []
    monkeypatch.setattr(pipeline, "save", lambda figure, path: drawn.append(figure))
    pipeline.draw_pipelines("unused.png", {"a": simulated("1f1b"), "b": simulated("gpipe")},
                            {"a": 2, "b": 1})
    pipeline.draw_pipelines("unused.png", {"a": simulated("1f1b"), "b": simulated("gpipe")}, 1)
    peaks = [max(FLOOR - collection.get_paths()[0].vertices[:, 1].min()
                 for collection in axes.collections if collection.get_gid() != "boxes"
                 and collection.get_paths()[0].vertices[:, 1].max() == pytest.approx(FLOOR))
             for figure in drawn for axes in figure.axes]
    assert peaks == pytest.approx([ROOM, ROOM, ROOM / 2, ROOM])
