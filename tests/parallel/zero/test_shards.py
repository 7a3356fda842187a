"""Pieces of every size; and one global norm, wherever gradients are."""

import math

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.comm.collectives import all_gather
from minipar.nn import GPT, GPTConfig, Linear, Module
from minipar.nn.parameter import Parameter, normal
from minipar.optim import SGD, AdamW, clip_grad_norm, grad_norm
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.testing import worlds
from tests.support.cases import ALL, MODELS, STRATEGIES


class Vector(Module):
    """x (b, n) → Σ (w x)², for a weight of n numbers and none else."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = Parameter((size,), normal(1.0))

    def loss(self, x, targets, loss_divisor):
        y = self.weight * Tensor(x)
        return (y * y).sum() * (1 / loss_divisor)


def train_vector(comm, size: int, sharded: bool) -> dict:
    """Two clipped steps of AdamW, the optimizer's states saved and loaded between them."""
    model = Vector(size).initialize(0, np.float64)
    strategy = FullyShardedDataParallel(model, comm) if sharded else Strategy(model, comm)
    found = {}
    optimizer = AdamW(strategy.slabs, lr=0.1)
    for step in range(2):
        x = np.random.default_rng(step).standard_normal((4, size))
        mine = list(strategy.rows(4))
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(
            [Microbatch(x[mine], np.zeros(len(mine), int), mine)])
        found[f"norm {step}"] = strategy.clip_grad_norm(0.1)
        strategy.step(optimizer)
        state = optimizer.state_dict()
        optimizer = AdamW(strategy.slabs, lr=0.1)
        optimizer.load_state_dict(state, step + 1)
    return found | strategy.state_dict() | optimizer.state_dict()


@worlds(1, 2, 3, 4, mpi=(4,))
def test_shards_of_every_size(world):
    """1 … 2p + 1 parameters: also ranks that hold none."""
    sizes = range(1, 2 * world.size + 2)
    alone = {n: Cluster(1).run(lambda comm, n=n: train_vector(comm, n, False))[0][0]
             for n in sizes}

    def body(comm):
        for n in sizes:
            for key, value in train_vector(comm, n, True).items():
                np.testing.assert_allclose(value, alone[n][key], rtol=1e-10, err_msg=(n, key))
    world.run(body)


class Ones(GPT):
    """A GPT whose loss is the sum of all its parameters: every gradient is 1, tied ones too."""

    def loss(self, ids, targets, loss_divisor):
        share, total = targets.size / loss_divisor, 0.0
        for _, module in self.named_modules():
            for name in module._parameters:
                total = getattr(module, name).sum() * share + total
        return total


CONFIG = GPTConfig(11, context=6, num_layers=2, num_heads=2, width=6)


@worlds(1, 2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("name", sorted({*STRATEGIES} - {"dp"}))
@pytest.mark.one_in(2)
def test_gradients_of_one_have_the_norm_root_of_the_unique_parameters(world, name):
    def body(comm):
        model = Ones(CONFIG).initialize(0, np.float64)
        expected = math.sqrt(model.num_parameters())
        strategy = ALL[name](model, comm)
        mine = np.array(strategy.rows(5))
        ids = np.zeros((len(mine), 3), int)
        strategy.forward_backward([Microbatch(ids, ids, mine)])
        norm = strategy.clip_grad_norm(expected / 2)
        assert abs(norm / expected - 1) < 1e-14
        # Clipped to half of it, but for the 1e-6 that PyTorch's equation adds.
        assert abs(strategy.clip_grad_norm(1e9) / expected - 0.5) < 1e-6
    world.run(body)


@worlds(2, 3, mpi=(3,))
def test_one_norm_of_replicated_and_sharded_slabs_together(world):
    """A replicated slab counts once, whatever p; shards are summed over their ranks."""
    def body(comm):
        replicated = Linear(3, 2).initialize(0, np.float64)
        sharded = Vector(7).initialize(0, np.float64)
        one = DistributedDataParallel(replicated, comm)
        other = FullyShardedDataParallel(sharded, comm)
        x = np.ones((1, 7))
        y = replicated(Tensor(np.ones((1, 3)))).sum() * (1 / comm.size)
        one.backward(y)
        other.forward_backward([Microbatch(x, np.zeros(1, int), [comm.rank])])
        for slab in (*one.slabs, *other.slabs):
            slab.grad[...] = 1
        slabs = [*one.slabs, *other.slabs]
        assert grad_norm(slabs) == math.sqrt(8 + 7)
        assert clip_grad_norm(slabs, 1.0) == math.sqrt(8 + 7)
        assert abs(grad_norm(slabs) - 1) < 1e-6
    world.run(body)


@worlds(2, 3, mpi=(3,))
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_the_norm_is_the_same_bits_on_every_rank(world, name):
    def body(comm):
        strategy = ALL[name](MODELS["mlp"]().initialize(0, np.float64), comm)
        optimizer = SGD(strategy.slabs)
        mine = np.array(strategy.rows(5), int)
        x, labels = np.random.default_rng(0).standard_normal((5, 4)), np.arange(5)
        optimizer.zero_grad()
        strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        norms = all_gather(comm, np.array([strategy.clip_grad_norm(0.1)]))
        assert (norms == norms[0]).all() and norms[0] > 0.1
    world.run(body)
