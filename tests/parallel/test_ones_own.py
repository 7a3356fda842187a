"""A strategy and a wrapper of one's own, each a few lines outside the package.

`docs/pages/design.md` shows both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.backend import Array
from minipar.comm import Cluster
from minipar.comm.collectives import all_gather
from minipar.comm.mesh import DeviceMesh
from minipar.comm.work import start_work
from minipar.nn import Module
from minipar.nn.gpt import Block
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.registry import STRATEGIES, StrategyEntry, make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.support.cases import Case


def sum_of_bytes(comm, flat: Array) -> None:
    """Sum over the ranks in place; each sends its numbers as bytes and one scale."""
    scale = max(float(np.abs(flat).max(initial=0)), 1e-30) / 127
    codes = all_gather(comm, np.round(flat / scale).astype(np.int8)).reshape(comm.size, -1)
    scales = all_gather(comm, np.array([scale]))
    flat[...] = np.einsum("r,rn->n", scales, codes)


class ByteDDP(DistributedDataParallel):
    """Data parallelism whose gradients travel as int8."""

    def reduce(self, flat):
        flat.fill_missing()
        self.works.append((flat, start_work(sum_of_bytes, flat.comm, flat.grad)))


class ClippedActivations:
    """Keeps each output of the modules of a kind within ± limit."""

    def __init__(self, model: Module, kind: type[Module], limit: float):
        self.limit = limit
        self.doors = [module.around(self.clip) for _, module in model.named_modules()
                      if isinstance(module, kind)]

    def clip(self, forward: Callable, *inputs: Any) -> Tensor:
        y = forward(*inputs)
        inside = np.abs(y.data) <= self.limit
        at_limit = np.where(inside, 0, np.sign(y.data) * self.limit)
        return y * inside.astype(y.dtype) + Tensor(at_limit.astype(y.dtype))


def step(comm, make, case):
    """The gradients of a batch, by name, and the bytes sent for them."""
    strategy = make(case.build(), comm)
    inputs, targets = case.batch(0)
    mine = np.array(strategy.rows(len(inputs)))
    comm.start_trace()
    loss = strategy.forward_backward([Microbatch(inputs[mine], targets[mine], mine)], 5, 0)
    sent = comm.stop_trace().bytes_sent()
    gradients = strategy.slabs.gradients()
    strategy.step(SGD(strategy.slabs, lr=0.1))
    return loss, gradients, sent


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("axis", ["dp", "pp", "tp"])
@pytest.mark.one_in(2)
def test_a_strategy_that_sums_bytes(world, axis, monkeypatch):
    """On any mesh; near the exact sum, in a quarter of the bytes of float64."""
    monkeypatch.setitem(STRATEGIES, "bytes", StrategyEntry("gradients as int8", ByteDDP))
    case = Case("gpt deep tied")

    def body(comm):
        sizes = {"dp": comm.size} if axis == "dp" else {"dp": 2, axis: 2}
        mesh = DeviceMesh(comm, **sizes)
        loss, right, exact = step(comm, lambda model, _: make_strategy("ddp", model, mesh), case)
        found_loss, found, sent = step(
            comm, lambda model, _: make_strategy("bytes", model, mesh), case)
        assert loss == found_loss
        largest = max(np.abs(values).max() for values in right.values())
        for name, values in right.items():
            assert np.abs(found[name] - values).max() < 4 * comm.size / 254 * largest, name
        assert any((found[name] != right[name]).any() for name in right)
        assert sent < exact / 3 or axis != "dp"
    world.run(body)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", ["ddp", "zero2", "fsdp"])
def test_a_wrapper_that_clips_activations(world, name):
    """The same with any strategy as on one process, and not what comes without it."""
    case = Case("gpt untied")

    def clipped(make):
        def wrap(model, comm):
            ClippedActivations(model, Block, 0.05)
            return make(model, comm)
        return wrap
    one = lambda model, comm: Strategy(model, comm)                     # noqa: E731
    right = Cluster(1).run(lambda comm: step(comm, clipped(one), case))[0][0]
    plain = Cluster(1).run(lambda comm: step(comm, one, case))[0][0]
    assert abs(right[0] - plain[0]) > 1e-6

    def body(comm):
        loss, found, _ = step(
            comm, clipped(lambda model, comm: make_strategy(name, model, comm)), case)
        assert loss == pytest.approx(right[0], rel=1e-12)
        for key, values in right[1].items():
            np.testing.assert_allclose(found[key], values, rtol=1e-10, atol=1e-14)
    world.run(body)
