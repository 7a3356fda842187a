"""Pictures of narrow numbers: what is drawn, and what they refuse."""

import numpy as np
import pytest

from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.viz import draw_losses, draw_precision, loss

GRADIENTS = {"as they are": np.float32(2.0) ** np.arange(-30, -10)}
DRIFT = {"master": [1, 1.5, 2], "narrow": [1, 1, 1]}


def test_formats_gradients_and_drift_are_written(tmp_path):
    path = draw_precision(tmp_path / "x.png", [FLOAT16, BFLOAT16], GRADIENTS, DRIFT, "title")
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="at least one format"):
        draw_precision(path, [], GRADIENTS, DRIFT)


def test_losses_are_running_means_and_the_legend_is_in_their_order(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(loss, "save", lambda figure, path: drawn.append(figure) or path)
    draw_losses({"low": [1.0, 2.0, 3.0], "high": [4.0, 4.0, 8.0]}, tmp_path / "x.png", window=2)
    (axes,) = drawn[0].axes
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["high: 6.000", "low: 2.500"]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[4, 6], [1.5, 2.5]]
    with pytest.raises(ValueError, match="short: at least 20 losses"):
        draw_losses({"short": [1.0]}, tmp_path / "x.png")
