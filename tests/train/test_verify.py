"""minipar train --verify: a planted fault is found where it is, in both worlds."""

import json

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.registry import STRATEGIES
from minipar.parallel.strategy import Strategy
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.testing import worlds
from minipar.train.recipes.side_by_side import compare_with_one_rank
from tests.train.test_train import SMALL, parse


def compared(comm, *words, num_steps=2):
    found = compare_with_one_rank(comm, parse("--data", "synthetic", "--ranks", str(comm.size),
                                              "--verify", str(num_steps), *words))
    return found if comm.rank == 0 else found.verdict


def run(world, *words, **options):
    """What rank 0 found, where it is in this process; the verdict of the others is the same."""
    found, *verdicts = world.run(lambda comm: compared(comm, *words, **options)) or [None]
    if isinstance(found, str | None):
        return None
    assert all(verdict == found.verdict for verdict in verdicts)
    return found


def after_the_gradients(plant):
    """A forward_backward that calls plant(strategy, step) at its end."""
    def forward_backward(self, microbatches, seed=0, step=0, scale=1.0):
        loss = real(self, microbatches, seed, step, scale)
        plant(self, step)
        return loss
    real = Strategy.forward_backward
    return forward_backward


@worlds(3)
def test_a_loss_p_times_too_large_is_found(world, monkeypatch):
    monkeypatch.setattr("minipar.parallel.strategy.sum_targets",
                        lambda comm, num_local, num_microbatches: float(num_local))
    found = run(world)
    if found is not None:
        assert found.first.key == (0, "loss", "loss") \
            and found.first.ranks == tuple(range(world.size))
        assert found.first.distance == pytest.approx(world.size - 1, rel=0.1)


@pytest.mark.parametrize("name", ["ddp", "mine"])
@pytest.mark.one_in(2)
def test_a_loss_twice_as_large_in_a_copy_of_a_strategy_is_found(name, monkeypatch):
    """In the place of ddp, too: the run on one rank is no strategy of the table."""
    class Copy(DistributedDataParallel):
        def run_batch(self, microbatches, loss_divisor, seed=0, step=0):
            return super().run_batch(microbatches, loss_divisor / 2, seed, step)
    monkeypatch.setitem(STRATEGIES, name, STRATEGIES["ddp"]._replace(kind=Copy))
    words = ["train", *SMALL, "--data", "synthetic", "--steps", "1", "--ranks", "2", "--verify",
             "1", "--strategy", name]
    assert main(words) == 1


@worlds(4)
@pytest.mark.parametrize("words", [
    "--strategy ddp", "--strategy fsdp", "--mesh pp=2,dp=2 --layers 2",
    *(pytest.param(words, marks=pytest.mark.slow) for words in (
        "--strategy zero1", "--strategy zero3", "--mesh dp=2,tp=2",
        "--mesh cp=2,dp=2 --strategy zero1"))])
@pytest.mark.one_in(3)
def test_one_gradient_that_is_wrong_on_one_rank_is_named(world, monkeypatch, words):
    name = "h.0.mlp.c_fc.weight"            # all four ranks, or those of stage 0, have a part

    def plant(strategy, step):
        if strategy.comm.size > 1 and strategy.comm.rank == 1 and step == 1:
            for slab in strategy.slabs:
                for segment in slab.segments:
                    if segment.name == name:
                        slab.complete_grad()[segment.start:segment.stop] *= 2
    monkeypatch.setattr(Strategy, "forward_backward", after_the_gradients(plant))
    found = run(world, *words.split())
    if found is not None:
        assert found.first.key == (1, "gradient", name) and found.first.ranks == (1,)
        assert 1e-3 < found.first.distance < 1.01 and "2 times as large" in found.cause


@worlds(3)
def test_a_forgotten_reduction_is_found(world, monkeypatch):
    monkeypatch.setattr(DistributedDataParallel, "reduce", lambda self, flat: None)
    found = run(world)
    if found is not None:
        assert found.first.key[:2] == (0, "gradient") \
            and found.first.ranks == tuple(range(world.size))
        assert "over dp is missing" in found.cause or "a reduction is missing" in found.cause


@worlds(3)
def test_parameters_that_were_not_gathered_are_found_in_the_last_step(world, monkeypatch):
    monkeypatch.setattr(ZeRO1, "parameters_changed", lambda self: None)
    found = run(world, "--strategy", "zero1", num_steps=1)
    if found is not None:
        assert found.first.key[:2] == (0, "parameter") and "as before the step" in found.cause


@worlds(3)
def test_a_gradient_that_is_no_number_is_found(world, monkeypatch):
    def plant(strategy, step):
        if strategy.comm.size > 1 and strategy.comm.rank == 2:
            strategy.slabs[0].grad[...] = np.nan
    monkeypatch.setattr(Strategy, "forward_backward", after_the_gradients(plant))
    found = run(world)
    if found is not None:
        assert found.first.ranks == (2,) and found.first.distance == np.inf
        assert "no numbers" in found.cause


@worlds(4)
@pytest.mark.parametrize("words", [
    "--strategy dp", "--strategy zero2", "--mesh pp=2,tp=2 --layers 2",
    "--strategy fsdp --hybrid-shard 2 --accumulate 2"])
@pytest.mark.one_in(4)
def test_what_is_right_is_the_same(world, words):
    found = run(world, "--dropout", "0.1", *words.split())
    if found is not None:
        assert found.verdict == "equal" and 0 < found.distance < 1e-10


def test_the_command_fails_and_says_where(monkeypatch, capsys):
    words = ["train", *SMALL, "--data", "synthetic", "--steps", "2", "--ranks", "2",
             "--verify", "2"]
    assert main(words) == 0
    assert "losses, gradients and parameters" in capsys.readouterr().out
    monkeypatch.setattr("minipar.parallel.strategy.sum_targets",
                        lambda comm, num_local, num_microbatches: float(num_local))
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "the same" not in printed.out and printed.err.count("\n") == 1
    assert "NOT the same as one rank, in float64: different: step 0, loss on ranks 0, 1: 1.0e+00" \
        in printed.err
    assert main([*words, "--json"]) == 1            # the document is whole all the same
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert any(row[0] == "distance to one rank" and row[1] > 0.9 for row in rows)
