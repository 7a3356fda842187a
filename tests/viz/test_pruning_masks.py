"""Masks drawn, and what pruned models cost."""

import numpy as np
import pytest

from minipar.viz import PrunedModel, draw_pruning_masks
from minipar.viz.plots.points import pareto_front

POINTS = [PrunedModel("dense", 98, (1, 1)), PrunedModel("half", 97, (0.5, 9)),
          PrunedModel("bad", 90, (0.6, 1.2)), PrunedModel("small", 80, (0.1, 0.9))]


def test_the_front_is_whom_none_beats():
    sizes, times = ({p.name: (p.costs[i], p.quality) for p in POINTS} for i in (0, 1))
    assert pareto_front(sizes) == ["small", "half", "dense"]
    assert pareto_front(times) == ["small", "dense"]


def test_it_is_drawn(tmp_path):
    masks = {"2 of 4": np.arange(64).reshape(8, 8) % 4 < 2, "none": np.zeros((4, 4), bool)}
    path = draw_pruning_masks(tmp_path / "a.png", masks, POINTS, ("size", "time"), "right, %",
                              "Masks")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="with 3 costs each"):
        draw_pruning_masks(path, masks, POINTS, ("size", "FLOPs", "time"), "right, %")
    with pytest.raises(ValueError, match="at least one mask"):
        draw_pruning_masks(path, {}, POINTS, ("size", "time"), "right, %")
