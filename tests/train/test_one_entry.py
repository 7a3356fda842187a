"""One entry in a table, and `minipar train` trains with it: CONTRIBUTING.md, "One entry each"."""

import re

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.commands.main import main
from minipar.mixed_precision.policy import PRECISIONS, uniform
from minipar.nn import Activation
from minipar.number_formats import BFLOAT16
from minipar.optim import SGD
from minipar.optim.lr_schedule import LR_SCHEDULES
from minipar.optim.registry import OPTIMIZERS, OptimizerEntry
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, ScheduleEntry
from minipar.parallel.pipeline.schedule.schedules import gpipe
from minipar.parallel.registry import STRATEGIES, StrategyEntry
from minipar.parallel.wire_formats.low_precision import LowPrecisionWire
from minipar.parallel.wire_formats.registry import WIRES
from minipar.train.config import OPTIONS
from tests.repository.test_layering import ROOT

USED: list[str] = []            # names of the entries that a run has used


class SignSGD(SGD):
    """An optimizer that no table has."""

    def compute_step(self, g, scratch, velocity=None):
        USED.append("optimizer")
        return np.multiply(np.sign(g), self.lr, out=scratch)


class Sum(DistributedDataParallel):
    """A strategy that no table has."""

    def finish(self):
        USED.append("strategy")
        super().finish()


def smooth(x):
    USED.append("activation")
    return ag.tanh(x)


def constant(step, peak, num_warmup, num_steps, floor):
    USED.append("lr_schedule")
    return peak


def rows(num_ranks, num_microbatches):
    USED.append("schedule")
    return gpipe(num_ranks, num_microbatches)


def wire():
    USED.append("wire")
    return LowPrecisionWire(BFLOAT16)


CASES = {       # the table, the entry, the words of the command
    "optimizer": (OPTIMIZERS, OptimizerEntry(SignSGD), ["--optimizer", "mine"]),
    "lr_schedule": (LR_SCHEDULES, constant, ["--set", "optimizer.lr_schedule=mine"]),
    "activation": (Activation.KINDS, smooth, ["--set", "model.activation=mine"]),
    "schedule": (SCHEDULES, ScheduleEntry(rows), ["--schedule", "mine", "--mesh", "pp=2"]),
    "strategy": (STRATEGIES, StrategyEntry("mine", Sum), ["--strategy", "mine", "--ranks", "2"]),
    "wire": (WIRES, wire, ["--reduce-dtype", "mine", "--ranks", "2"]),
}
RUN = ["train", "--data", "digits", "--hidden", "8,8", "--steps", "2", "--batch", "8"]


@pytest.mark.parametrize("kind", CASES)
def test_a_run_trains_with_an_entry_of_the_table(kind, monkeypatch, capsys):
    table, entry, words = CASES[kind]
    monkeypatch.setitem(table, "mine", entry)
    USED.clear()
    assert main([*RUN, *words]) == 0
    assert kind in USED and "final loss" in capsys.readouterr().out


def test_a_precision_of_the_table_is_that_of_the_run(monkeypatch, capsys):
    monkeypatch.setitem(PRECISIONS, "mine", uniform("mine", BFLOAT16))
    losses = []
    for name in ("mine", "bf16", "fp32"):
        assert main([*RUN, "--precision", name]) == 0
        losses.append(re.search(r"final loss ([\d.]+)", capsys.readouterr().out)[1])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("key, table", [
    ("optimizer", OPTIMIZERS), ("lr_schedule", LR_SCHEDULES), ("activation", Activation.KINDS),
    ("schedule", SCHEDULES), ("strategy", STRATEGIES), ("reduce_dtype", WIRES),
    ("precision", PRECISIONS)])
def test_the_choices_of_an_option_are_the_table(key, table):
    assert OPTIONS[key].table is table


def shown(text: str) -> dict[str, float]:
    """The default of each name in a text such as "adam, adamw: 0.003; sgd: 0.1"."""
    groups = [part.rpartition(": ") for part in text.split("; ")]
    return {name: float(value) for names, _, value in groups for name in names.split(", ")}


def test_the_defaults_of_an_optimizer_are_those_of_its_entry(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "mine", OptimizerEntry(SignSGD, lr=0.25, weight_decay=0.01))
    text = OPTIONS["lr"].default_text
    assert text.endswith("; mine: 0.25") and shown(text) == {
        name: entry.lr for name, entry in OPTIMIZERS.items()}
    assert shown(OPTIONS["weight_decay"].default_text) == {
        name: entry.weight_decay for name, entry in OPTIMIZERS.items()}
    assert shown(OPTIONS["momentum"].default_text) == {     # "mine" takes none
        name: entry.momentum for name, entry in OPTIMIZERS.items() if entry.momentum is not None}


def test_a_format_of_messages_can_be_that_of_weights(monkeypatch, capsys):
    monkeypatch.setitem(WIRES, "mine", wire)
    assert main([*RUN, "--strategy", "fsdp", "--gather-dtype", "dgc"]) == 2
    error = capsys.readouterr().err
    assert "choose fp32, bf16, fp16, int8, int4" in error and error.endswith(" or mine\n")


def test_contributing_names_the_tables():
    shown = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("### One entry each")[2]
    shown = shown.partition("\n### ")[0]
    assert all(f"`{name}`" in shown for name in (
        "OPTIMIZERS", "LR_SCHEDULES", "Activation.KINDS", "PRECISIONS", "WIRES", "SCHEDULES",
        "STRATEGIES"))
