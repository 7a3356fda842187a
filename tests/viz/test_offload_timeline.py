"""Lanes of copies: what is drawn are the steps."""

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipar.memory.offload.timeline import KEEP, OFFLOAD, RECOMPUTE, Machine, simulate_step
from minipar.memory.remat.profile import ChainProfile, PartProfile
from minipar.viz.offload_timeline import LANES, computing, draw_offload_timeline

COSTS = ChainProfile((PartProfile(10, (100, 90), (100, 90), 9, 0, 1000, 800, 0, 2000),) * 4)


@pytest.mark.parametrize("speed", [20.0, 200.0])
def test_what_is_drawn_are_the_steps(tmp_path, monkeypatch, speed):
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self) or
                        save(self, *args, **options))
    steps = simulate_step((OFFLOAD, OFFLOAD, RECOMPUTE, KEEP), COSTS, Machine(1000.0, speed))
    path = draw_offload_timeline(tmp_path / "lanes.png", {"one": steps, "again": steps}, 250,
                                 "Lanes")
    assert path.read_bytes().startswith(b"\x89PNG")
    for axes in figures[0].axes[:2]:
        drawn = [(LANES[round(p.get_y() + p.get_height() / 2)], p.get_gid(), p.get_x(),
                  pytest.approx(p.get_x() + p.get_width())) for p in axes.patches
                 if isinstance(p, Rectangle)]
        assert drawn == [step[:2] + step[3:5] for step in steps]
    peak = max(step.num_bytes for step in computing(steps))
    for axes in figures[0].axes[2:]:
        assert [text.get_text() for text in axes.texts] == ["limit 250 B", f"peak {peak} B"]


def test_nothing_to_draw_is_refused(tmp_path):
    for runs in ({}, {"empty": []}):
        with pytest.raises(ValueError, match="no steps to draw"):
            draw_offload_timeline(tmp_path / "lanes.png", runs, 1)
    assert not list(tmp_path.iterdir())
