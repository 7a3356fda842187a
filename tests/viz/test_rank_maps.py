"""A value of each rank as a colour."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minipar.viz import draw_rank_maps


def test_all_maps_share_a_scale(tmp_path, monkeypatch):
    drawn, saved = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: (
        drawn.append(figure), saved(figure, *args, **options))[1])
    values = np.arange(12.0).reshape(3, 4)
    maps = {"one": values, "late": values + 5, "three": values, "four": values}
    path = draw_rank_maps(tmp_path / "a.png", maps, ("stage", "rank"), "ms", "Ranks")
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in drawn[0].axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == [*maps]
    for axes, shown in zip(panels, maps.values()):
        image, = axes.get_images()
        np.testing.assert_array_equal(image.get_array(), shown)
        assert image.get_clim() == (0, 16)
        assert (axes.get_ylabel(), axes.get_xlabel()) == ("stage", "rank")


def test_no_map_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one map"):
        draw_rank_maps(tmp_path / "a.png", {}, ("stage", "rank"), "ms")
