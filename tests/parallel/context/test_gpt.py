"""A GPT whose tokens are spread over ranks = one process: uneven tokens, logits, experts, refusals.

The composition matrix (test_matrix.py) has the other strategies beside it.
"""

import re

import numpy as np
import pytest

from minipar.autograd import IGNORE_INDEX, cross_entropy, no_grad
from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig, MoEConfig, RopeConfig
from minipar.optim import SGD
from minipar.parallel.context.parallelize_context import parallelize_context
from minipar.parallel.context.rank_groups import ContextOptions, ContextSplit
from minipar.parallel.context.token_order import ORDERS
from minipar.parallel.expert.router_bias import balance_routers
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.support.cases import assert_all_close

VOCABULARY, LENGTH, ROWS = 11, 23, 3
ROUTED = MoEConfig(4, balance_loss=0, bias_rate=0.01)
METHODS = {"ring": ContextOptions(), "all_gather": ContextOptions("all_gather")}


def gpt(**changes):
    sizes = {"context": LENGTH, "num_layers": 2, "num_heads": 12, "num_kv_heads": 6, "width": 24,
             "dropout": 0.2, **changes}
    return GPT(GPTConfig(VOCABULARY, **sizes)).initialize(0, np.float64)


def batch(step, only_one_target=False):
    draw = np.random.default_rng(step)
    ids, targets = draw.integers(0, VOCABULARY, (2, ROWS, LENGTH))
    if only_one_target:
        targets[...] = IGNORE_INDEX
        targets[1, 9] = 4
    return ids, targets


def train(comm, mesh=None, only_one_target=False, sizes=(), **options):
    """Two steps: losses, norms, gradients, parameters."""
    model = gpt(**dict(sizes))
    strategy = Strategy(model, comm.split(comm.rank)) if mesh is None else make_strategy(
        "ddp", model, DeviceMesh(comm, **mesh), **options)
    optimizer, found = SGD(strategy.slabs, lr=0.1), {}
    for step in range(2):
        optimizer.zero_grad()
        ids, targets = batch(step, only_one_target)
        rows = np.arange(ROWS)[list(strategy.rows(ROWS))]
        found[f"loss {step}"] = strategy.forward_backward(
            [Microbatch(ids[rows], targets[rows], rows)], 3, step)
        found[f"norm {step}"] = strategy.clip_grad_norm(1.0)
        found |= {f"gradient {step} {name}": g
                  for name, g in strategy.slabs.gradients().items()}
        balance_routers(strategy)
        strategy.step(optimizer)
    return found | strategy.state_dict()


def check(world, mesh, only_one_target=False, sizes=(), **options):
    alone = Cluster(1).run(lambda comm: train(comm, None, only_one_target, sizes))[0][0]
    world.run(lambda comm: assert_all_close(
        train(comm, mesh, only_one_target, sizes, **options), alone, rtol=1e-10, atol=1e-13))


@worlds(2, 3, 4, mpi=(3, 4))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.one_in(2)
def test_23_tokens(world, method, order):
    check(world, {"cp": world.size}, context=METHODS[method]._replace(order=order))


@worlds(2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_ulysses(world, order):
    check(world, {"cp": world.size}, sizes={"num_kv_heads": 12},
          context=ContextOptions(order=order, ulysses=world.size))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.one_in(2)
def test_ulysses_in_a_ring_with_rotary_positions(world, method):
    check(world, {"cp": 4}, sizes={"rope": RopeConfig(), "num_kv_heads": 1},
          context=METHODS[method]._replace(ulysses=2))


@worlds(3, mpi=(4,))
def test_one_target_in_the_batch(world):
    check(world, {"cp": world.size}, only_one_target=True)


@worlds(8, mpi=())
def test_three_axes(world):
    check(world, {"pp": 2, "cp": 2, "tp": 2}, sizes={"num_layers": 3},
          context=ContextOptions(order="striped"))


@worlds(8, mpi=())
@pytest.mark.parametrize("ulysses", [1, 2])
def test_ranks_without_a_row(world, ulysses):
    """Three samples on four ranks of dp."""
    check(world, {"dp": 4, "cp": 2}, context=ContextOptions(ulysses=ulysses))


@worlds(4, mpi=())
def test_experts_without_losses_that_are_counted_by_sequence(world):
    check(world, {"cp": 2, "dp": 2, "ep": 2}, sizes={"experts": ROUTED, "dropout": 0.0})


@worlds(3, mpi=(3,))
def test_logits_are_those_of_one_process(world):
    """Of any length, in evaluation, on every rank."""
    whole = gpt()
    ids = batch(0)[0]

    def body(comm):
        model = parallelize_context(gpt(), ContextSplit(comm))
        with no_grad():
            for length in (LENGTH, 5, 1):
                np.testing.assert_allclose(model(ids[:, :length]).data,
                                           whole(ids[:, :length]).data, rtol=1e-10, atol=1e-14)
    world.run(body)


@worlds(2, mpi=(2,))
def test_the_gradient_of_gathered_logits(world):
    """Every rank has the same gradient of all logits: each takes that of its tokens."""
    ids, targets = batch(0)

    def loss_and_gradients(model):
        loss = cross_entropy(model(ids), targets)
        loss.backward()
        return loss.item(), {name: p.grad.copy() for name, p in model.named_parameters()}
    alone, expected = loss_and_gradients(gpt())

    def body(comm):
        loss, gradients = loss_and_gradients(parallelize_context(gpt(), ContextSplit(comm)))
        assert loss == pytest.approx(alone, rel=1e-12)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(all_reduce(comm, gradient), expected[name], atol=1e-12)
    world.run(body)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
def test_by_hand(world, data_parallel):
    """A loss inside forward_context(), and backward with it: gradients are reduced."""
    ids, targets = batch(0)

    def step(strategy, rows):
        with strategy.forward_context():
            loss = strategy.model.loss(ids[rows], targets[rows], loss_divisor=targets.size)
        strategy.backward(loss)
        strategy.step(SGD(strategy.slabs, lr=0.1))
        return strategy.state_dict()
    alone = Cluster(1).run(lambda comm: step(Strategy(gpt(), comm), np.arange(ROWS)))[0][0]

    def body(comm):
        strategy = make_strategy(data_parallel, gpt(), DeviceMesh(comm, dp=2, cp=2))
        rows = np.arange(ROWS)[list(strategy.rows(ROWS))]
        assert_all_close(step(strategy, rows), alone, rtol=1e-10, atol=1e-13)
    world.run(body)


@pytest.mark.parametrize(("mesh", "sizes", "options", "sentence"), [
    ({"cp": 4}, {}, {"context": ContextOptions("tree")}, "choose from ring, all_gather"),
    ({"cp": 4}, {}, {"context": ContextOptions(order="dealt")},
     "choose from zigzag, contiguous, striped"),
    ({"cp": 4}, {}, {"context": ContextOptions(ulysses=3)},
     "a Ulysses degree of 3 does not divide 4 ranks of cp: choose a divisor of 4"),
    ({"cp": 4}, {"num_heads": 3, "num_kv_heads": 3}, {"context": ContextOptions(ulysses=4)},
     "gives 3 heads with 3 of keys and values to 4 ranks, which does not divide: choose a degree "
     "of 1, 3, or the ring"),
    ({"dp": 2, "tp": 2}, {}, {"context": ContextOptions()}, "here cp has only one: leave it out"),
    ({"cp": 4}, {"experts": MoEConfig(4)}, {}, "counted by sequence, and cp cuts sequences"),
    ({"cp": 4}, {"experts": MoEConfig(4, balance_loss=0, capacity_factor=1.0)}, {},
     "capacity_factor=None"),
    ({"cp": 2, "tp": 2}, {}, {"sequence_parallel": True},
     "over 2 ranks of tp, and of 23 tokens a rank of cp has 11, which does not divide: take "
     "sequences of 24, or leave it off"),
    ({"pp": 2, "cp": 2}, {}, {"schedule": "2f2b"}, "unknown schedule '2f2b'"),
    ({"cp": 4}, {}, {"schedule": "1f1b"}, "schedule goes with a mesh with pp"),
])
def test_what_does_not_go_together_is_refused(mesh, sizes, options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Cluster(4).run(lambda comm: train(comm, mesh, sizes=sizes, **options))


def test_an_mlp_has_no_tokens():
    def body(comm):
        make_strategy("ddp", MLP([4, 5, 6]).initialize(), DeviceMesh(comm, cp=2))
    with pytest.raises(ValueError, match="tokens of a GPT over ranks, and an MLP has none: leave"):
        Cluster(2).run(body)


def test_a_sequence_longer_than_the_context_is_refused_by_its_whole_length():
    def body(comm):
        model = parallelize_context(gpt(context=20), ContextSplit(comm))
        model(batch(0)[0])
    with pytest.raises(ValueError, match="a sequence of 23 tokens is longer .* context of 20"):
        Cluster(2).run(body)


def test_a_part_alone_does_not_know_the_length():
    def body(comm):
        parallelize_context(gpt(), ContextSplit(comm)).embed(batch(0)[0])
    with pytest.raises(RuntimeError, match="call model.loss or model"):
        Cluster(2).run(body)
