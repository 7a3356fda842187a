"""Training runs in few bits: the models, the batches, and one process to compare with."""

from functools import cache

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.mixed_precision import LossScaler, precision_preset, set_precision, unscale
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch, Strategy

VOCABULARY, TIME, ROWS = 11, 8, 8
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}       # the largest relative error of a rounding
SLOW_FP16 = ["bf16", pytest.param("fp16", marks=pytest.mark.slow), "fp8"]
MODELS = {"gpt": lambda: GPT(GPTConfig(VOCABULARY, context=TIME, num_layers=4, num_heads=2,
                                       width=16, dropout=0.2, tied=False)),
          "tied": lambda: GPT(GPTConfig(VOCABULARY, context=TIME, num_layers=2, num_heads=2,
                                        width=16)),
          "deep": lambda: GPT(GPTConfig(VOCABULARY, context=TIME, num_layers=6, num_heads=2,
                                        width=8, dropout=0.2)),
          "mlp": lambda: MLP([4, 7, 6, 5, VOCABULARY])}


def build(model, precision):
    made = MODELS[model]()
    return set_precision(made, precision_preset(precision, made)).initialize(0)


def batch(model, step, rows):
    draw = np.random.default_rng(step)
    ids, targets = draw.integers(0, VOCABULARY, (2, ROWS, TIME))
    if model == "mlp":
        ids, targets = draw.standard_normal((ROWS, 4)).astype(np.float32), targets[:, 0]
    return Microbatch(ids[rows], targets[rows], rows)


def train(comm, model, precision, make=Strategy, parts=1, **options):
    """Two steps of SGD with a scaled loss: losses, gradients, parameters."""
    strategy = make(build(model, precision), comm, **options)
    optimizer, scaler = SGD(strategy.slabs, lr=0.1, momentum=0.9), LossScaler(2.0**10)
    found = {}
    for step in range(2):
        optimizer.zero_grad()
        batches = [batch(model, step, part[list(strategy.rows(len(part)))])
                   for part in np.split(np.arange(ROWS), parts)]
        found[f"loss {step}"] = strategy.forward_backward(batches, 1, step, scaler.scale)
        finite = unscale(strategy, scaler.scale)
        scaler.update(not finite)
        assert finite
        for name, gradient in strategy.slabs.gradients().items():
            found[f"gradient {step} of {name}"] = gradient
        strategy.step(optimizer)
    return found | strategy.state_dict()


@cache
def alone(model, precision, parts):
    return Cluster(1).run(lambda comm: train(comm, model, precision, parts=parts))[0][0]


def same_bits(found, expected, loss=1e-6):
    """Assert equal bits, except for losses, which are added up in a different order."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if name.startswith("loss"):
            np.testing.assert_allclose(value, expected[name], rtol=loss)
        else:
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def one_step(comm, model, precision, make, **options):
    """Gradients of one step, on every rank all of them."""
    strategy = make(build(model, precision), comm, **options)
    rows = np.arange(ROWS)[list(strategy.rows(ROWS))]
    strategy.forward_backward([batch(model, 0, rows)], 1, 0)
    return strategy.slabs.gradients()
