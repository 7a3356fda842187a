"""The picture of softened answers: every panel of every number of classes; mistakes."""

import numpy as np
import pytest

from minipar.viz import draw_soft_targets


@pytest.mark.parametrize("truth", [0, 6])
def test_it_is_written(tmp_path, truth):
    bars = {"the label": np.eye(7)[truth], "T = 4": np.full(7, 1 / 7)}
    path = draw_soft_targets(tmp_path / "bars.png", np.eye(4), bars, truth, "an answer")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("bars, truth", [
    ({}, 0), ({"a": [1.0, 0.0], "b": [1.0]}, 0), ({"a": [1.0, 0.0]}, 2), ({"a": [1.0]}, -1)])
def test_what_cannot_be_drawn_is_refused(tmp_path, bars, truth):
    with pytest.raises(ValueError, match="one number of classes"):
        draw_soft_targets(tmp_path / "bars.png", np.eye(4), bars, truth)
