"""Plans being executed, and compute against memory: what is drawn is what was given."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from minipar.memory.remat.predict import predict, run_steps
from minipar.memory.remat.profile import ChainProfile, PartProfile
from minipar.viz.figure import empty_figure
from minipar.viz.timelines.remat import LOOKS, boxes, draw_remat_tradeoff, draw_runs

COSTS = ChainProfile((PartProfile(10, (60, 60), (60, 60), 3, 0, 1000, 900, 0, 2000),) * 4, 25)
PLAN = (0, (1, 2), 3)
STEPS = list(run_steps(PLAN, COSTS))
NAMES = ["one", "two", "three", "four"]


@pytest.fixture
def saved(monkeypatch):
    """The figures that are saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig",
                        lambda self, *args, **options: figures.append(self) or
                        save(self, *args, **options))
    return figures


def test_boxes_are_the_steps_one_after_the_other():
    found = boxes(STEPS)
    assert [(box.kind, box.part) for box in found] == [
        *[("forward", i) for i in range(4)], ("loss", 4), ("backward", 3), ("again", 1),
        ("again", 2), ("backward", 2), ("backward", 1), ("backward", 0)]
    assert all(a.end == b.start for a, b in zip(found, found[1:]))
    assert found[-1].end == sum(step.flops for step in STEPS) == 4000 + 4 * 2000 + 1900
    assert max(box.live for box in found) == predict(PLAN, COSTS).peak == 190


def test_what_is_drawn_are_the_boxes():
    figure = empty_figure(11, 4)
    draw_runs(figure, {"a plan": STEPS, "again": STEPS}, NAMES)
    expected = [(box.part, to_rgba(LOOKS[box.kind]["facecolor"]), box.start / 1e6, box.end / 1e6)
                for box in boxes(STEPS) if box.kind in LOOKS]
    for axes in figure.axes[:2]:
        drawn = [(round(extent.y0 + 0.4), tuple(collection.get_facecolor()[0]), extent.x0,
                  extent.x1) for collection in axes.collections
                 for extent in (path.get_extents() for path in collection.get_paths())]
        assert sorted(drawn) == sorted(expected)
    for axes in figure.axes[2:]:
        assert [text.get_text() for text in axes.texts] == ["peak 190 B"]


def test_points_and_curves_are_drawn_as_they_are(tmp_path, saved):
    best, counted = [(100, 5.0), (200, 1.0), (400, 0.0)], [(200, 1.0)]
    growth = {"L": ([(4, 5), (9, 10)], [(4, 5), (9, 10)])}
    draw_remat_tradeoff(tmp_path / "both.png", best, {"none": [(400, 0.0)]}, counted, growth,
                        {"a plan": STEPS}, NAMES, "Both")
    left, right = saved[0].subfigs[0].axes
    assert [tuple(zip(*line.get_data())) for line in left.lines] == [
        ((200, 1.0), (400, 0.0)), ((400, 0.0),), ((200, 1.0),)], "5 forwards are out of the picture"
    assert [tuple(zip(*line.get_data())) for line in right.lines] == [((4, 5), (9, 10))] * 2


def test_nothing_to_draw_is_refused(tmp_path):
    for runs in ({}, {"empty": []}):
        with pytest.raises(ValueError, match="no steps to draw"):
            draw_runs(empty_figure(11, 4), runs, NAMES)
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_remat_tradeoff(tmp_path / "both.png", [], {}, [], {}, {"a plan": STEPS}, NAMES)
    assert not list(tmp_path.iterdir())
