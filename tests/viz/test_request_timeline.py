"""Requests over time: cells where a request computes, a line while it waits."""

import pytest
from matplotlib.colors import to_hex

from minipar.inference.scheduling.scripted_requests import play, read_scenario
from minipar.viz.colors import BLUE, GREY, ORANGE
from minipar.viz.timelines import requests

STEPS = play(read_scenario({
    "engine": {"num_blocks": 8, "block_size": 4, "max_requests": 1},
    "requests": [{"name": "A", "arrival_step": 0, "prompt": [1, 2, 3], "outputs": [[7, 8]]},
                 {"name": "B", "arrival_step": 0, "prompt": [4, 5], "outputs": [[9]]}]}))["steps"]
TIMED = [(0.01 * i, 0.01 * (i + 1), step) for i, step in enumerate(STEPS)]


def test_cells_are_the_steps_in_which_a_request_computes(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(requests, "save", lambda figure, path: figures.append(figure))
    requests.draw_request_timeline(tmp_path / "x.png", {"one at a time": TIMED},
                                           {"A": 0.0, "B": 0.0})
    (axes,) = figures[0].axes
    drawn = {color: [] for color in (ORANGE, BLUE, GREY)}
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            drawn[to_hex(collection.get_facecolor()[0]).upper()].append(
                (round(100 * box.x0), round(100 * box.x1), round((box.y0 + box.y1) / 2)))
    assert drawn == {ORANGE: [(0, 1, 0), (2, 3, 1)], BLUE: [(1, 2, 0)],
                     GREY: [(0, 2, 0), (0, 3, 1)]}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["A", "B"]


def test_a_way_without_steps_is_refused(tmp_path):
    for runs in ({}, {"static": []}):
        with pytest.raises(ValueError, match="at least one step"):
            requests.draw_request_timeline(tmp_path / "x.png", runs, {"A": 0.0})
