"""What drawing returns: a path that a notebook shows as a picture."""

import os
import pickle
from pathlib import Path

from minipar.viz import draw_loss
from minipar.viz.figure import Picture


def test_a_drawn_picture_shows_itself(tmp_path):
    drawn = draw_loss([0, 1, 2], [3.0, 2.0, 1.0], tmp_path / "loss.png")
    assert drawn._repr_png_() == (tmp_path / "loss.png").read_bytes()
    assert drawn._repr_png_().startswith(b"\x89PNG") and drawn._repr_svg_() is None
    drawn = draw_loss([0, 1], [3.0, 2.0], str(tmp_path / "loss.svg"))
    assert "<svg" in drawn._repr_svg_() and drawn._repr_png_() is None


def test_it_is_a_path_like_any_other(tmp_path):
    drawn = draw_loss([0, 1], [2.0, 1.0], tmp_path / "loss.png")
    plain = tmp_path / "loss.png"
    assert isinstance(drawn, Path) and drawn == plain and str(drawn) == str(plain)
    assert {plain: 1}[drawn] == 1
    assert drawn.with_suffix(".svg")._repr_svg_() is None           # that was never drawn
    assert drawn.parent._repr_png_() is None
    assert os.fspath(drawn) == str(plain)
    copied = pickle.loads(pickle.dumps(drawn))
    assert copied == drawn and isinstance(copied, Picture)
