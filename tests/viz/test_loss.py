"""Loss curves and walls: what they refuse, and that they are written whole."""

import math

import pytest

from minipar.units import in_bytes, time_unit
from minipar.viz import Requirement, draw_device_limits, draw_loss


def test_loss_curve_is_written(tmp_path):
    steps = range(100)
    path = draw_loss(tmp_path / "loss.png", steps, [4 - s / 50 for s in steps], "GPT",
                     reference=(math.log(96), "guessing evenly"))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_one_step_is_a_curve_too(tmp_path):
    assert draw_loss(tmp_path / "loss.svg", [1], [3.5]).exists()


@pytest.mark.parametrize("steps, losses, named", [
    ([1, 2], [3.0], "2 steps and 1 losses"), ([], [], "0 steps and 0 losses")])
def test_steps_without_losses_are_refused(tmp_path, steps, losses, named):
    with pytest.raises(ValueError, match=named):
        draw_loss(tmp_path / "loss.png", steps, losses)
    assert not list(tmp_path.iterdir())


def test_wall_is_written(tmp_path):
    sizes = {"small": 1e8, "large": 1e11}
    needs = [Requirement("memory", "GB", [1.6, 1600], {"a device": 80}),
             Requirement("time", "days", [0.1, 1e5], {"a month": 30, "a life": 3e4})]
    path = draw_device_limits(tmp_path / "wall.png", sizes, needs, "Where one device stops")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("seconds, unit", [(2.5, "s"), (1.0, "s"), (0.02, "ms"), (3e-6, "µs"),
                                           (4e-9, "ns"), (0.0, "ns")])
def test_time_units(seconds, unit):
    assert time_unit(seconds)[0] == unit


@pytest.mark.parametrize("count, text", [(0, "0 B"), (999, "999 B"), (16000, "16 kB"),
                                         (1.5e6, "1.5 MB"), (2e18, "2000 PB")])
def test_bytes_as_a_person_writes_them(count, text):
    assert in_bytes(count) == text
