"""A name of a table that nothing makes is an error that names it, not another entry."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.compress.pruning.prune import prune
from minipar.compress.quantization.gptq import column_order
from minipar.compress.quantization.observers import Observer
from minipar.mixed_precision.policy import precision_preset
from minipar.nn import GPT, MLP, Activation, GPTConfig, MoEConfig
from minipar.nn.gpt import MLPS, FeedForward
from minipar.nn.moe.dispatch import queue_places
from minipar.nn.step_context import training_step
from minipar.number_formats.affine import IntGrid
from minipar.optim.registry import OPTIMIZERS, make_optimizer
from minipar.parallel.cost.experts import layer_parameters
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.registry import WIRES
from minipar.train.config import TrainConfig
from minipar.train.recipes.pruning import scores
from minipar.train.setup.device import device_array
from minipar.train.setup.precision import activation_format

NEW = "new one"


@pytest.fixture
def model():
    return MLP([3, 4, 2]).initialize(0, np.float32)


def optimizer(name, model):
    return make_optimizer(name, model.slabs, 0.1, None, 0.9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_made(name, model):
    """The name is that of the class, in lower case."""
    assert type(optimizer(name, model)).__name__.lower() == name.replace("_", "")


def experts(**changed):
    """A forward of a model with experts, after its configuration was changed behind its checks."""
    config = MoEConfig(4, 2, capacity_factor=1.0, width=3)
    for name, value in changed.items():
        object.__setattr__(config, name, value)
    return GPT(GPTConfig(5, 4, 1, 2, 8, experts=config)).initialize(0)


def forward(net):
    with training_step(0, 0, range(2), shares=np.full(2, 0.5)):
        return net.loss(np.zeros((2, 4), int), np.zeros((2, 4), int))


def observe(model, name=NEW):
    observer = Observer("minmax", IntGrid())
    observer.name = name
    observer.observe(np.ones((2, 3)))


CASES = {
    "optimizer": lambda model: optimizer(NEW, model),
    "activation": lambda model: Activation(NEW),
    "strategy": lambda model: make_strategy(NEW, model, None),
    "schedule": lambda model: make_schedule(NEW, 2, 2),
    "precision": lambda model: precision_preset(NEW, model),
    "activations' format": lambda model: activation_format(TrainConfig().updated(precision=NEW)),
    "wire": lambda model: WIRES[NEW](),
    "device": lambda model: device_array(TrainConfig().updated(device=NEW), None),
    "pruning": lambda model: scores(None, SimpleNamespace(method=NEW), {}),
    "scope": lambda model: prune(model, {}, 0.5, NEW),
    "observer": observe,
    "order of columns": lambda model: column_order(np.eye(2), NEW),
    "scores of a router": lambda model: forward(experts(scores=NEW)),
    "order of choices": lambda model: queue_places(np.zeros((2, 1), int), 1, NEW),
    "dropped choices": lambda model: forward(experts(drop=NEW)),
    "capacity": lambda model: forward(experts(capacity_per=NEW)),
    "balance": lambda model: forward(experts(balance_per=NEW)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_unknown_name_is_an_error_that_names_it(name, model):
    with pytest.raises((ValueError, KeyError), match=NEW):
        CASES[name](model)


def test_an_mlp_of_which_no_experts_are_made(monkeypatch):
    """Its experts would compute a GELU."""
    monkeypatch.setitem(MLPS, NEW, type(NEW, (FeedForward,), {}))
    config = GPTConfig(5, 4, 1, 2, 8, mlp=NEW)
    GPT(config)
    with_experts = replace(config, experts=MoEConfig(4))
    for use in (GPT, layer_parameters):
        with pytest.raises(KeyError, match=NEW):
            use(with_experts)
