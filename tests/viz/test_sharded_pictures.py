"""The pictures of cut layers and of bars: what they draw is what they are given."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipar.viz import draw_sharded_pair, draw_stacked_bars


@pytest.fixture
def saved(monkeypatch):
    """The figures that are saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig",
                        lambda self, *args, **options: figures.append(self) or
                        save(self, *args, **options))
    return figures


@pytest.mark.parametrize("columns", [[(0, 12)], [(0, 6), (6, 12)], [(0, 5), (5, 9), (9, 12)]])
@pytest.mark.one_in(2)
def test_the_coloured_parts_are_the_columns(tmp_path, saved, columns):
    path = draw_sharded_pair(tmp_path / "pair.png", columns, 12, "a pair")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = saved[0].axes
    for letter, size in (("A", "get_width"), ("y", "get_width"), ("B", "get_height")):
        parts = [getattr(patch, size)() for patch in axes.patches if isinstance(patch, Rectangle)
                 and str(patch.get_gid()).startswith(letter)]
        np.testing.assert_allclose(np.array(parts) / 1.5, [(b - a) / 12 for a, b in columns])


def test_of_many_ranks_the_first_are_drawn(tmp_path, saved):
    draw_sharded_pair(tmp_path / "pair.png", [(i, i + 1) for i in range(8)], 8)
    texts = [text.get_text() for text in saved[0].axes[0].texts]
    assert "rank 3" in texts and "rank 4" not in texts
    assert any("the first 4 of 8 ranks" in text for text in texts)


@pytest.mark.parametrize("columns", [[(0, 3)], [(0, 2), (3, 4)], [(1, 4)], []])
def test_what_is_no_cut_is_refused(tmp_path, columns):
    with pytest.raises(ValueError, match="are not 4 columns"):
        draw_sharded_pair(tmp_path / "pair.png", columns, 4)
    assert not list(tmp_path.iterdir())


def test_parts_are_stacked_and_totals_marked(tmp_path, saved):
    bars = {"one": {"a": 100.0, "b": 50.0}, "two": {"b": 25.0, "c": 5.0}}
    draw_stacked_bars(tmp_path / "bars.png", bars, {"one": 150, "two": 31}, "bars")
    (axes,) = saved[0].axes
    drawn = sorted((p.get_y(), p.get_height()) for p in axes.patches if p.get_height())
    assert drawn == [(0, 25), (0, 100), (25, 5), (100, 50)]
    assert list(axes.lines[0].get_ydata()) == [150, 31]
    assert {"150 B", "31 B"} <= {text.get_text() for text in axes.texts}


def test_a_bar_without_a_measured_total_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no measured total for two"):
        draw_stacked_bars(tmp_path / "bars.png", {"one": {"a": 1}, "two": {"a": 1}}, {"one": 1})
    with pytest.raises(ValueError, match="any bar"):
        draw_stacked_bars(tmp_path / "bars.png", {}, {})
