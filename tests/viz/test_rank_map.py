"""A value of each rank as a colour."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minipar.viz import draw_rank_map


def test_each_panel_shows_its_numbers(tmp_path, monkeypatch):
    drawn, saved = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: (
        drawn.append(figure), saved(figure, *args, **options))[1])
    values = np.arange(12.0).reshape(3, 4)
    panels = {"on time": values, "late": values + 5}
    path = draw_rank_map(tmp_path / "a.png", panels, "Ranks")
    assert path.read_bytes().startswith(b"\x89PNG")
    shown = [axes for axes in drawn[0].axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in shown] == ["on time: 0 to 11", "late: 5 to 16"]
    for axes, numbers in zip(shown, panels.values()):
        image, = axes.get_images()
        np.testing.assert_array_equal(image.get_array(), numbers)
        assert (axes.get_ylabel(), axes.get_xlabel()) == ("stage", "rank of the stage")


def test_no_panel_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one panel"):
        draw_rank_map(tmp_path / "a.png", {})
