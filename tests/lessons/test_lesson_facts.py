"""Statements of lessons that their own tables do not assert."""

import importlib
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.cost.calibration import BUILT_IN
from minipar.comm.cost.traffic import bytes_by_axis
from minipar.comm.simulated.links import Link
from minipar.launcher import simulate
from minipar.parallel.pipeline.schedule.simulate import Times
from minipar.parallel.pipeline.schedule.timeline import Interval, Timeline
from minipar.testing import worlds

LESSONS = Path(__file__).parents[2] / "lessons"


@pytest.fixture
def lesson(monkeypatch, tmp_path):
    """A function that gives what a lesson's file, or a helper's, defines."""
    monkeypatch.syspath_prepend(LESSONS)
    monkeypatch.setattr(sys, "argv", ["lesson", "--out", str(tmp_path)])
    return lambda name: (runpy.run_path(str(LESSONS / name)) if name.endswith(".py") else
                         vars(importlib.import_module(f"support.{name}")))


def test_why_auto_chooses_is_true_of_this_machine(lesson):
    """Real ranks have the built-in links until `minipar calibrate` has measured theirs."""
    measured = replace(BUILT_IN, within=Link(1e-6, 1e10))
    for known, words in ((None, "has not seen"), (BUILT_IN, "has not seen"),
                         (measured, "goes by the table that `minipar calibrate` measured")):
        comm = SimpleNamespace(is_simulated=False, rank_state=SimpleNamespace(calibration=known))
        assert lesson("auto_choice")["about_auto"](comm).startswith(f"*auto* {words}")


def test_zero_prints_the_papers_bytes(lesson, capsys, monkeypatch):
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 ranks."""
    kit = importlib.import_module("support.kit")
    monkeypatch.setattr(kit.Lesson, "picture", lambda lesson, draw: None)
    simulate(lesson("09_zero.py")["main"], Cluster(2))
    printed = capsys.readouterr().out
    rows = {line.split("│")[1].strip(): line for line in printed.splitlines() if " GB " in line}
    for name, formula, size in (("DDP", "16Ψ", "120.0 GB"), ("ZeRO-1", "4Ψ + 12Ψ/p", "31.4 GB"),
                                ("ZeRO-2", "2Ψ + 14Ψ/p", "16.6 GB"), ("ZeRO-3", "16Ψ/p", "1.9 GB")):
        cells = [cell.strip() for cell in rows[name].split("│")]
        assert cells[3:5] == [formula, size]
    heads = [line for line in printed.splitlines() if "in this run, " in line]
    assert ["bytes" in head for head in heads] == [True, False], "bytes and elements apart"
    assert ["elements" in head for head in heads] == [False, True]


@worlds(2, 4, mpi=(2,))
def test_zero1_sends_with_its_step_what_ddp_does(world, lesson):
    step = lesson("lesson_18")["step"]

    def body(comm):
        def sent(trace, mesh):
            return int(sum_over_ranks(comm, sum(bytes_by_axis(trace, mesh)["dp"].values())))
        found = {}
        for name in ("ddp", "zero1"):
            seen = step(comm, {"dp": comm.size}, data_parallel=name)
            found[name] = sent(seen.trace, seen.mesh), sent(seen.update, seen.mesh)
        gradients, update = found["zero1"]
        assert gradients == update > 0 == found["ddp"][1]
        assert gradients + update == found["ddp"][0]
    world.run(body)


@worlds(2, mpi=(2,))
def test_predictions_share_no_device(world, lesson):
    """However crowded the cores: of two stages one works at a time, two columns work always."""
    names, on_free_links = lesson("lesson_11"), lesson("pipeline_runs")["on_free_links"]
    batch = names["batch_of"](16, (names["WIDTH"],), names["WIDTH"])
    images = names["batch_of"](names["IMAGES"], (16, 16, 3), 10)

    def body(comm):
        found = [on_free_links(comm, program) for program in (
            lambda comm: names["observe_stages"](comm, names["mlp"](2), batch)[1],
            lambda comm: names["observe_columns"](comm, images)[1])]
        if comm.rank or comm.is_simulated:
            assert found == [None, None]
            return
        assert [seen.busy for seen in found] == pytest.approx([1 / 2, 1])
        assert all({span.rank for span in seen.trace.named_spans()} == {0, 1} for seen in found)
    world.run(body)


def test_typical_times_are_free_of_waiting(lesson):
    """The least of each stage, for its longer ones waited for a core; of the stages the median."""
    def row(rank, *seconds):
        ends = [(kind, i, 10 * i, 10 * i + s) for i, (kind, s) in enumerate(seconds)]
        return [Interval(rank, kind, rank, i, start, end) for kind, i, start, end in ends]
    timeline = Timeline(3, [*row(0, ("F", 1), ("F", 5), ("B", 2)), *row(1, ("F", 9), ("F", 2),
                                                                       ("B", 4)),
                            *row(2, ("F", 3), ("B", 8), ("B", 6))])
    assert lesson("pipeline_timelines")["typical"](timeline) == Times(2, 4, 0)
