"""The picture of grids."""

import numpy as np
import pytest

from minipar.viz import GridPanel, draw_quantization_grids


def test_a_picture_for_each_grid(tmp_path):
    numbers = np.random.default_rng(0).standard_normal((3, 40))
    panels = [GridPanel("one", numbers, np.arange(-7, 8) * 0.4),
              GridPanel("row", numbers[0], np.arange(-7, 8) * 0.2)]
    path = draw_quantization_grids(tmp_path / "grids.png", panels, "in 4 bits")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no numbers to draw"):
        draw_quantization_grids(tmp_path / "none.png", [])
