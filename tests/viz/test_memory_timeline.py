"""The picture of memory shows what the ledger counted: levels as data, areas as drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minipar.comm import Cluster, Trace
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy, strategies_with
from minipar.parallel.strategy import Microbatch
from minipar.viz.timelines import memory_timeline as memory
from minipar.viz.timelines.memory_timeline import (
    COLORS,
    MemoryStep,
    draw_memory_timeline,
    draw_step,
    live_levels,
    peak_of,
    phase_starts,
)

HISTORY = [(0.0, "parameters", 40), (1.0, "gradients", 10), (2.0, "gradients", 30),
           (2.0, "gradients", 20), (4.0, "parameters", 50), (9.0, "gradients", 0)]


def test_levels_begin_with_what_was_there_and_end_in_time():
    times, live = live_levels(HISTORY, 1.5, 5.0)
    assert times.tolist() == [1.5, 2.0, 2.0, 4.0, 5.0]
    assert live["gradients"].tolist() == [10, 30, 20, 20, 20]
    assert live["parameters"].tolist() == [40, 40, 40, 50, 50]


def test_a_peak_of_no_duration_is_a_peak():
    step = MemoryStep("", HISTORY, 0.0, 5.0)
    assert peak_of(step) == (2.0, 70)
    assert peak_of(step, ["gradients"]) == (2.0, 30)
    assert peak_of(step, ["activations"])[1] == 0


def record(name, num_ranks=4):
    """Rank 0's (ledger, start and end, peak while the step ran) of one step with a strategy."""
    def main(comm):
        ledger = Ledger(now=comm.now)
        ids = np.arange(2 * 9).reshape(2, 9) % 7
        with ledger.recording():
            model = GPT(GPTConfig(7, context=8, num_layers=3, num_heads=2, width=8)).initialize()
            options = {"bucket_mb": 0.002} if name in strategies_with("bucket_mb") else {}
            strategy = make_strategy(name, model, comm, **options)
            optimizer = AdamW(strategy.slabs)
            comm.start_trace()
            ledger.peak, start = ledger.live, comm.now()
            strategy.forward_backward([Microbatch(ids[:, :-1], ids[:, 1:], np.arange(2))])
            strategy.step(optimizer)
        return ledger, (start, comm.now()), comm.stop_trace()
    return simulate(main, Cluster(num_ranks))[0][0]


@pytest.mark.parametrize("name", ["ddp", "zero2", "fsdp"])
def test_drawn_areas_are_the_ledger_s_history(name):
    """Each area, whatever it stands on, is the integral of its kind's bytes over the step."""
    ledger, (start, end), _ = record(name)
    step = MemoryStep(name, ledger.history, start, end)
    assert peak_of(step)[1] == ledger.peak
    axes = Figure().subplots()
    draw_step(axes, step, tuple(COLORS), end - start)
    shown = [kind for kind in COLORS if any(k == kind for _, k, _ in ledger.history)]
    assert len(axes.collections) == len(shown) >= 4
    for kind, area in zip(shown, axes.collections):
        held, level, since = 0.0, 0, start
        for time, what, live in ledger.history:
            if what == kind:
                held, level, since = held + level * (max(time, start) - since), live, \
                    max(time, start)
        held += level * (end - since)
        x, y = area.get_paths()[0].vertices.T
        drawn = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
        assert held > 0 and drawn == pytest.approx(held, rel=1e-9), kind


def test_phases_are_found_in_the_trace():
    trace = Trace(spans=[(0, "Linear forward", 1.0, 2.0), (1, "Linear forward", 0.0, 1.0),
                         (0, "Linear weights", 2.5, 3.0), (0, "Linear backward", 3.0, 4.0),
                         (0, "AdamW optimizer", 5.0, 6.0), (0, "other", 0.0, 9.0)])
    assert phase_starts(trace, 0) == [(1.0, "forward"), (2.5, "backward"), (5.0, "optimizer")]


def test_every_microbatch_has_its_phases():
    trace = Trace(spans=[(0, f"Linear {name}", start, start + 1.0) for start, name in enumerate(
        ("forward", "backward", "weights", "forward", "backward", "optimizer"))])
    assert phase_starts(trace, 0) == [(0, "forward"), (1, "backward"), (3, "forward"),
                                      (4, "backward"),
                                      (5, "optimizer")]


def test_what_is_computed_again_is_a_part_of_backward():
    trace = Trace(spans=[(0, f"Linear {name}", start, start + 1.0) for start, name in enumerate(
        ("forward", "backward", "again", "backward", "forward"))])
    assert phase_starts(trace, 0) == [(0, "forward"), (1, "backward"), (4, "forward")]


def test_one_picture_for_all_with_one_axis(tmp_path):
    steps = []
    for name in ("ddp", "zero1", "fsdp"):
        ledger, times, trace = record(name, num_ranks=2)
        steps.append(MemoryStep(name, ledger.history, *times, (ledger.peak, "as counted"),
                                phase_starts(trace, 0)))
    path = draw_memory_timeline(tmp_path / "memory.png", steps, "GPT", num_parameters=1000)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_panels_side_by_side_have_one_time_axis(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(memory, "save", lambda figure, path: drawn.append(figure))
    draw_memory_timeline(tmp_path / "m.png", [MemoryStep("short", HISTORY, 0.0, 9e-4),
                          MemoryStep("long", HISTORY, 0.0, 9.0)])
    short, long = drawn[0].axes
    assert short.get_xlim() == long.get_xlim() == (0, 9)
    assert short.get_xlabel() == long.get_xlabel() == "time"


def test_nothing_to_draw_is_refused(tmp_path):
    for steps in ([], [MemoryStep("", [], 0.0, 1.0)], [MemoryStep("", HISTORY, -2.0, -1.0)]):
        with pytest.raises(ValueError, match="no memory to draw"):
            draw_memory_timeline(tmp_path / "m.png", steps)
    assert not list(tmp_path.iterdir())
