"""TeraPipe on slices of tokens gives what one process gives on whole sequences."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.launcher import UsageError
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.pipeline.slices import slice_bounds
from minipar.parallel.pipeline.terapipe import SliceBatch, TeraPipe
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from minipar.train.config import TrainConfig
from minipar.train.program import train as train_run
from tests.support import cases
from tests.support.case_models import DEEP, LLAMA, gpt
from tests.support.cases import Case, check

MODELS = {"sliced tied": gpt(num_layers=6), "sliced untied": gpt(num_layers=6, tied=False),
          "sliced llama": gpt(**LLAMA, num_layers=6)}
CASES = [Case("sliced tied", parts=(4,)), Case("sliced llama", parts=(4, 1), max_norm=0.5),
         Case("sliced untied", "adamw", "one in the whole batch", parts=(3, 2))]


@worlds(1, 2, 3, 4, mpi=(2,), slow_mpi=(4,))
@pytest.mark.parametrize("num_slices", [1, 2, 3, 6])
@pytest.mark.parametrize("number", range(3))
@pytest.mark.one_in(3)
def test_it_equals_whole_sequences_in_one_process(world, num_slices, number, monkeypatch):
    """Losses, norms, gradients of every parameter, two steps; slices of one token, too."""
    for name, build in MODELS.items():
        monkeypatch.setitem(DEEP, name, build)
    monkeypatch.setitem(cases.ALL, "terapipe", lambda model, comm: make_strategy(
        "terapipe", model, DeviceMesh(comm, pp=comm.size), num_slices=num_slices))
    check(world, "terapipe", CASES[number])


def test_without_the_gradients_of_keys_and_values_it_is_not_equal(monkeypatch):
    """Each slice's own backward begins with what later slices add up."""
    plain = SliceBatch.backward

    def forgetful(batch, action, grad):
        for _, leaf in batch.strategy.slices.kept[action.microbatch].values():
            leaf.grad = None
        return plain(batch, action, grad)
    monkeypatch.setattr(SliceBatch, "backward", forgetful)
    monkeypatch.setitem(DEEP, "sliced tied", MODELS["sliced tied"])
    monkeypatch.setitem(cases.ALL, "terapipe", lambda model, comm: make_strategy(
        "terapipe", model, DeviceMesh(comm, pp=comm.size), num_slices=3))
    with pytest.raises(AssertionError):
        Cluster(2).run(lambda comm: cases.compare(comm, "terapipe", cases.train(
            comm, "terapipe", CASES[0]), cases.expected(CASES[0])))


def strategy_of(comm, width=8, context=64, num_slices=4, **options):
    return TeraPipe(GPT(GPTConfig(11, context, 4, 2, width, **options)).initialize(),
                    DeviceMesh(comm, pp=comm.size), num_slices=num_slices)


def test_later_slices_are_shorter_and_the_costliest_costs_least():
    bounds = slice_bounds(64, 4, GPTConfig(11, 64, 4, 2, width=8))
    lengths = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == 64 and lengths[0] > lengths[-1]
    costs = [sum(48 + t for t in range(a, b)) for a, b in zip(bounds, bounds[1:])]
    even = [sum(48 + t for t in range(a, a + 16)) for a in range(0, 64, 16)]
    assert max(costs) < max(even) and max(costs) - sum(even) / 4 < 48 + 64


def test_slices_leave_nothing_behind():
    def body(comm):
        strategy = strategy_of(comm, context=6)
        ids = np.zeros((1, 6), int)
        strategy.forward_backward([Microbatch(ids, ids, np.array([0]))] * 2)
        return len(strategy.slices.kept), strategy.slices.places
    for kept, places in Cluster(2).run(body)[0]:
        assert kept == 0 and places == [(0, 0)]


@pytest.mark.parametrize("make, says", [
    (lambda comm: TeraPipe(MLP([2, 3, 2]).initialize(), DeviceMesh(comm, pp=2)),
     "cuts the sequences of a GPT"),
    (lambda comm: strategy_of(comm, dropout=0.1), "without dropout"),
    (lambda comm: slice_bounds(3, 4, GPTConfig(11, 64, 4, 2, 8)), "3 tokens has no 4 slices"),
    (lambda comm: slice_bounds(65, 4, GPTConfig(11, 64, 4, 2, 8)), "longer than the model's"),
    (lambda comm: TeraPipe(GPT(GPTConfig(11, 6, 4, 2, 8)).initialize(), DeviceMesh(comm, pp=2),
                           schedule="1f1b"), "by the schedule terapipe: give")])
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        Cluster(2).run(make)


@pytest.mark.parametrize("remat", ["full", "selective", "every:2"])
@pytest.mark.one_in(3)
def test_it_equals_also_where_backward_recomputes_slices(remat):
    """Each with its own positions, and the keys and values of the slices before it."""
    config = TrainConfig().updated(data="synthetic", layers=4, heads=2, width=8, context=12,
                                   steps=3, batch=4, dtype="float64")
    sliced = config.updated(mesh="pp=2", strategy="terapipe", num_slices=3, remat=remat)
    np.testing.assert_allclose(train_run(sliced).losses, train_run(config).losses, rtol=1e-9)


def test_minipar_train_takes_it(capsys):
    base = {"data": "synthetic", "layers": 2, "heads": 2, "width": 16, "context": 12, "steps": 4,
            "batch": 4, "dtype": "float64"}
    plain = train_run(TrainConfig().updated(**base))
    sliced = train_run(TrainConfig().updated(**base, mesh="pp=2", strategy="terapipe",
                                             microbatches=1, num_slices=3))
    np.testing.assert_allclose(sliced.losses, plain.losses, rtol=1e-9)
    with pytest.raises((UsageError, SystemExit)):
        train_run(TrainConfig().updated(**base, mesh="pp=2,dp=2", strategy="terapipe"))
    assert "the mesh pp alone" in capsys.readouterr().err
