"""Lesson 00; `size` is the number of layers."""

import numpy as np

from minipar.comm import Cluster
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.lessons.algorithms import Case, says


def small_gpt(layers):
    config = GPTConfig(50, 16, layers, 2, 8)
    return config, GPT(config).initialize()


def count_parameters(function, comm, layers, names):
    return function(50, 16, layers, 8)


def count_bytes(function, comm, layers, names):
    return function(small_gpt(layers)[1].num_parameters())


def count_flops(function, comm, layers, names):
    """Of the weights in products, of 3 sequences."""
    return function(12 * layers * 8**2 + 50 * 8, 3 * 16)


def library_bytes(comm, layers):
    from support.lesson_00 import count_bytes
    model = small_gpt(layers)[1]
    return count_bytes(model, AdamW(model.slabs))


def library_flops(comm, layers):
    """Without those of the biases, 2 · 9 d a layer and token."""
    from support.lesson_00 import count_flops, run
    ids = np.zeros((3, 16), int)
    meter, _ = run(small_gpt(layers)[1], ids, ids, 3 * 16)
    return count_flops(meter)["linear layers"] - 3 * 16 * 2 * 9 * layers * 8


def train_a_step(function, comm, layers, names):
    weights, x, labels = mlp_data(layers)
    function(comm, weights, x, labels, 0.01)
    return weights


def mlp_data(layers):
    rng = np.random.default_rng(layers)
    return list(rng.normal(0, 0.5, (layers, 8, 8))), rng.random((13, 8)), rng.integers(0, 8, 13)


def library_step(comm, layers):
    from support.plain_mlp import mlp_of
    weights, x, labels = mlp_data(layers)
    model = mlp_of(weights)
    strategy = make_strategy("ddp", model, comm)
    mine = np.array(strategy.rows(13), int)
    strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
    strategy.step(AdamW(strategy.slabs, lr=0.01, weight_decay=0.0))
    return [strategy.state_dict()[f"{2 * i}.weight"] for i in range(layers)]


CASES = [
    Case("parameters", count_parameters,
         lambda comm, layers: small_gpt(layers)[1].num_parameters(), (1, 3)),
    Case("training_bytes", count_bytes, library_bytes, (1, 3)),
    Case("training_flops", count_flops, library_flops, (1, 3)),
    Case("train", train_a_step, library_step, (1, 3), 1e-9),
]
PARTS = {"counted_linear", "devices"}


def check_change(names):
    """Weights differ from one process and from rank to rank, on 4 ranks only; counts do not."""
    rng = np.random.default_rng(0)
    start, x, labels = rng.normal(0, 0.5, (3, 16, 16)), rng.random((60, 16)), np.arange(60) % 16

    def body(comm):
        weights = list(start.copy())
        return names["train"](comm, weights, x, labels), np.array(weights)
    (alone,), found = Cluster(1).run(body)[0], Cluster(4).run(body)[0]
    assert [kept for (_, kept), _ in found] == [alone[0][1]] * 4
    assert sum(flops for (flops, _), _ in found) == alone[0][0]
    assert all(np.abs(weights - alone[1]).max() > 1e-3 for _, weights in found)
    assert all(np.abs(weights - found[0][1]).max() > 1e-3 for _, weights in found[1:])
    says("00", "the last row fails, on every rank", "its own 15 rows", "On one rank nothing fails")
