"""The bars of the traffic picture are the loads it was given."""

import pytest
from matplotlib.figure import Figure

from minipar.viz import draw_rank_traffic
from minipar.viz.plots import traffic

LOADS = {"one root": [30, 10, 10], "ring": [20, 20, 20]}
GROWTH = {"one root": {2: (10, 11), 4: (30, 31)}, "ring": {2: (10, 10), 4: (15, 15)}}


def test_bars_and_dots_are_what_was_given(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(traffic, "save", lambda figure, path: drawn.append(figure) or path)
    draw_rank_traffic(tmp_path / "x.png", LOADS, "", GROWTH)
    bars, curves = drawn[0].axes
    heights = [[bar.get_height() for bar in group] for group in bars.containers]
    assert heights == list(LOADS.values())
    assert [list(line.get_ydata()) for line in curves.lines] == [[10, 30], [11, 31], [10, 15],
                                                                 [10, 15]]
    assert isinstance(drawn[0], Figure) and bars.get_ylabel() and bars.get_xlabel()


def test_it_is_written(tmp_path):
    path = draw_rank_traffic(tmp_path / "traffic.png", LOADS, "", GROWTH)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_loads_of_different_worlds_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"programs on \[2, 3\] ranks"):
        draw_rank_traffic(tmp_path / "x.png", {"a": [1, 2], "b": [1, 2, 3]}, "", GROWTH)
