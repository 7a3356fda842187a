"""Pictures of slow networks: each run is one line against its own costs; 1/p is a crossing."""

import numpy as np
import pytest

from minipar.viz import CostedRun, draw_loss_by_cost, draw_sparse_or_dense
from minipar.viz.plots import points as module


@pytest.fixture
def drawn(monkeypatch):
    """The figure that a function saves."""
    figures = []
    monkeypatch.setattr(module, "save", lambda figure, path: figures.append(figure) or path)
    return figures


def run(seconds):
    steps = np.arange(1, 41)
    return CostedRun(3 - steps / 40, seconds * steps, 1000 * steps)


def test_a_line_for_each_run_in_the_colour_of_its_method(drawn):
    slow, fast = [run(2.0), run(2.0)], [run(0.5)]
    draw_loss_by_cost("x.png", {"wires": {"DDP": slow, "PowerSGD": fast}, "apart": {"DDP": slow}})
    upper, lower = drawn[0].axes[0], drawn[0].axes[2]
    assert [len(axes.lines) for axes in drawn[0].axes] == [3, 3, 2, 2]
    assert upper.lines[0].get_color() == upper.lines[1].get_color() == lower.lines[0].get_color()
    assert upper.lines[2].get_color() != upper.lines[0].get_color()
    x, y = upper.lines[2].get_data()
    assert x[-1] == 20 and y[-1] == pytest.approx(3 - np.mean(np.arange(26, 41)) / 40)
    assert [axes.get_title(loc="left") for axes in (upper, lower)] == ["wires", "apart"]


def test_sparse_and_dense_cross_at_one_by_p(drawn):
    draw_sparse_or_dense("x.png", {4: {0.01: 0.04}, 8: {0.01: 0.08}})
    lines = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 50]
    for p, line in zip((4, 8), lines, strict=True):
        x, y = line.get_data()
        assert np.interp(1 / p, x, y) == pytest.approx(1, rel=1e-2)


def test_the_pictures_are_written(tmp_path):
    files = [draw_loss_by_cost(tmp_path / "a.png", {"": {"DDP": [run(1.0)]}}),
             draw_sparse_or_dense(tmp_path / "b.png", {2: {0.1: 0.2}})]
    assert all(file.stat().st_size > 5000 for file in files)
