"""A run that goes on from a checkpoint, on as many ranks, is the uninterrupted run, bit by bit."""

import numpy as np
import pytest

from minipar.checkpoint_file import NEWEST, PREVIOUS, load
from minipar.parallel.wire_formats.registry import WIRES, tensor_wire
from minipar.parallel.wire_formats.wire import Wire
from minipar.train.config import TrainConfig
from minipar.train.program import train
from tests.support.cases import APART
from tests.train.test_train import parse

STEPS, SAVED = 9, 5
BASE = {"data": "digits", "hidden": "8,8", "steps": STEPS, "batch": 12, "seed": 3, "mesh": "dp=3"}
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "clip": 0.0, "lr": 0.01}


def by_wire(name, **options):
    """The options of a run that sums gradients by this wire."""
    wire = tensor_wire(name)
    return {"reduce_dtype": name, **(PLAIN if wire and wire.has_momentum else {}), **options}


REMEMBER = [name for name, make in WIRES.items() if type(make()).state_dict is not Wire.state_dict]
# From the tables: strategies whose ranks train apart, and wires that remember something.  Options
# where they show more: saved between two exchanges, and with a message under way.
RUNS = {name: {"strategy": name} for name in APART} | {name: by_wire(name) for name in REMEMBER} | {
    "local_sgd": {"strategy": "local_sgd", "every": 3},
    "local_sgd averaged": {"strategy": "local_sgd", "every": 3, "local_states": "averaged"},
    "diloco streaming": {"strategy": "diloco", "every": 6, "fragments": 2, "delay": 1, "mix": 0.25},
    "diloco muon": {"strategy": "diloco", "every": 4, "optimizer": "muon"},
    "local_sgd 8 bits": {"strategy": "local_sgd", "every": 4, "optimizer": "adamw_8bit"},
    "reset 8 bits": {"strategy": "local_sgd", "every": 4, "local_states": "reset",
                     "optimizer": "adamw_8bit"},
    "elastic": {"strategy": "elastic", "every": 2},
    "powersgd": by_wire("powersgd", rank=1, start=2),
    "top_k": by_wire("top_k", density=0.05, stage_steps=2),
    "dgc": by_wire("dgc", density=0.05, stage_steps=4),
    "onebit_adam": by_wire("onebit_adam", start=3),
    "onebit_adam early": by_wire("onebit_adam", start=7),
    "int4 zero1": by_wire("int4", strategy="zero1"),
}


def defaults(options):
    """`options`, and for others BASE's: without its MLP if `options` have a GPT."""
    return {key: value for key, value in BASE.items()
            if key != "hidden" or "layers" not in options} | options


def interrupted(tmp_path, options, **changes):
    """The whole run, and one that goes on after SAVED steps; `changes` are of the second."""
    whole = train(TrainConfig().updated(**defaults(options), out=tmp_path, save_every=SAVED))
    again = train(TrainConfig().updated(**defaults(options) | changes, out=tmp_path / "again",
                                        resume=tmp_path / PREVIOUS))
    return whole, again


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.one_in(3)
def test_resuming_is_going_on(name, tmp_path):
    whole, again = interrupted(tmp_path, RUNS[name])
    assert whole.losses == again.losses
    left, right = (load(folder / NEWEST) for folder in (tmp_path, tmp_path / "again"))
    for kind in ("model", "optimizer", "others"):
        one, other = getattr(left, kind), getattr(right, kind)
        assert one.keys() == other.keys() and (one or kind == "optimizer")
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def test_another_number_of_ranks_goes_on_from_the_mean(tmp_path):
    whole, again = interrupted(tmp_path, RUNS["diloco"], mesh="dp=2")
    assert whole.losses[:SAVED] == again.losses[:SAVED] and len(again.losses) == STEPS
    assert whole.losses[SAVED:] != again.losses[SAVED:]


@pytest.mark.parametrize("strategy", APART)
@pytest.mark.parametrize("mesh", ["dp=2,pp=2", "dp=2,tp=2"])
def test_as_many_ranks_on_another_mesh_go_on_from_the_mean(tmp_path, strategy, mesh):
    """They have other slabs, or slabs of other shapes."""
    whole, again = interrupted(tmp_path, {"strategy": strategy, "mesh": "dp=4"}, mesh=mesh)
    assert whole.losses[:SAVED] == again.losses[:SAVED] and len(again.losses) == STEPS


@pytest.mark.parametrize("strategy", ["local_sgd", "delayed", "gossip"])
@pytest.mark.one_in(3)
def test_ranks_of_cp_do_not_get_parameters_of_ranks_of_dp(tmp_path, strategy):
    """The number of ranks and all shapes are the same: only the mesh differs."""
    gpt = {"data": "synthetic", "layers": 1, "width": 8, "heads": 2, "context": 8, "batch": 8,
           "strategy": strategy, "mesh": "dp=4"}
    _, again = interrupted(tmp_path, gpt, mesh="dp=2,cp=2")
    assert len(again.losses) == STEPS
    own = load(tmp_path / "again" / NEWEST).others
    parameters = {key: array for key, array in own.items() if key.endswith("/parameters")}
    assert len(parameters) == 4
    for key, array in parameters.items():
        np.testing.assert_array_equal(array, parameters[key.replace("cp=0", "cp=1")])
    assert any((array != parameters[key.replace("dp=0", "dp=1")]).any()
               for key, array in parameters.items())


def test_another_wire_forgets_the_options_of_the_one_before(tmp_path):
    train(TrainConfig().updated(**BASE, **RUNS["powersgd"], out=tmp_path))
    words = ["--resume", str(tmp_path), "--steps", "10", "--mesh", "dp=3"]
    assert parse(*words).messages.rank == 1
    assert parse(*words, "--reduce-dtype", "int8").messages.rank is None
    assert parse(*words, "--reduce-dtype", "top_k", "--set", "messages.density=0.1").get(
        "density") == 0.1
    assert len(train(parse(*words, "--reduce-dtype", "fp32")).losses) == 10


def test_another_strategy_goes_on_from_the_mean(tmp_path):
    _, again = interrupted(tmp_path, RUNS["diloco"], strategy="ddp", every=None)
    assert len(again.losses) == STEPS
