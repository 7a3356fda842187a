"""Crossover curves: one panel for each comparison."""

import pytest

from minipar.viz import CostCurves, draw_crossovers
from minipar.viz.plots.curves import _binary


def test_panels_are_drawn(tmp_path):
    line = [(64, 1e-5), (1 << 20, 1e-3)]
    panels = [CostCurves(f"panel {i}", {"ring": line}, {"ring": line, "tree": line},
                     [(4096, "tree"), (1 << 19, "ring")]) for i in range(4)]
    path = draw_crossovers(tmp_path / "curves.png", panels, "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw in 'empty'"):
        draw_crossovers(tmp_path / "curves.png", [CostCurves("empty", {}, {"ring": []})])
    assert not list(tmp_path.iterdir())


def test_numbers_are_short():
    assert [_binary(n) for n in (64, 65536, 1 << 20, 700000)] == [
        "64 B", "64 KiB", "1 MiB", "683.6 KiB"]
