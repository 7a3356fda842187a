"""Drawing returns a path that a notebook shows as a picture, and takes a path first."""

import inspect
import os
import pickle
from pathlib import Path

import pytest
from matplotlib.patches import Patch

from minipar import viz
from minipar.viz import draw_loss
from minipar.viz.figure import Picture, legend_below, new_figure


def test_a_drawn_picture_shows_itself(tmp_path):
    drawn = draw_loss(tmp_path / "loss.png", [0, 1, 2], [3.0, 2.0, 1.0])
    assert drawn._repr_png_() == (tmp_path / "loss.png").read_bytes()
    assert drawn._repr_png_().startswith(b"\x89PNG") and drawn._repr_svg_() is None
    drawn = draw_loss(str(tmp_path / "loss.svg"), [0, 1], [3.0, 2.0])
    assert "<svg" in drawn._repr_svg_() and drawn._repr_png_() is None


@pytest.mark.parametrize("name", [name for name in viz.__all__
                                  if name.startswith(("draw_", "write_"))])
def test_every_picture_takes_its_path_first(name):
    assert next(iter(inspect.signature(getattr(viz, name)).parameters)) == "path"


def test_it_is_a_path_like_any_other(tmp_path):
    drawn = draw_loss(tmp_path / "loss.png", [0, 1], [2.0, 1.0])
    plain = tmp_path / "loss.png"
    assert isinstance(drawn, Path) and drawn == plain and str(drawn) == str(plain)
    assert {plain: 1}[drawn] == 1
    assert drawn.with_suffix(".svg")._repr_svg_() is None           # that was never drawn
    assert drawn.parent._repr_png_() is None
    assert os.fspath(drawn) == str(plain)
    copied = pickle.loads(pickle.dumps(drawn))
    assert copied == drawn and isinstance(copied, Picture)


@pytest.mark.parametrize("words", [5, 25, 60])
def test_a_legend_is_not_cut(words):
    figure, _ = new_figure(11, 3)
    legend_below(figure, [Patch(label=f"{i}" * words) for i in range(8)], 7)
    legend, = figure.legends
    assert len(legend.get_texts()) == 8
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
