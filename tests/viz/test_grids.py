"""The picture of grids."""

import numpy as np
import pytest

from minipar.viz.grids import OnGrid, draw_grids


def test_a_picture_for_each_grid(tmp_path):
    numbers = np.random.default_rng(0).standard_normal((3, 40))
    panels = [OnGrid("one", numbers, np.arange(-7, 8) * 0.4), OnGrid("row", numbers[0], np.arange(
        -7, 8) * 0.2)]
    path = draw_grids(panels, tmp_path / "grids.png", "in 4 bits")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no numbers to draw"):
        draw_grids([], tmp_path / "none.png")
