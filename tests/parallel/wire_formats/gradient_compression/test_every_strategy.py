"""Every strategy with every wire: it trains as it should, or refuses the wire; nothing is silent.

Both ranks of dp are given the same rows, so ranks that train apart take the steps of one rank.
"""

from functools import cache

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.optim import SGD
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.data.trained_apart import TrainedApart
from minipar.parallel.pipeline.pipeline_only import PipelineOnly
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.gradient_compression.tensor_wire import TensorWire
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC
from minipar.parallel.wire_formats.registry import WIRES
from minipar.parallel.wire_formats.wire import Wire
from minipar.parallel.zero.zero1 import ZeRO1
from tests.support.case_models import TIME, VOCABULARY, gpt

DRAW = np.random.default_rng(0)
ROWS = Microbatch(*DRAW.integers(0, VOCABULARY, (2, 4, TIME)), np.arange(4))


class Waiting(Wire):
    """A wire of one's own: it sends numbers as they are, once it has seen all of them."""

    waits_for_all, largest = True, 0.0

    def see_all(self, slabs, num_ranks):
        self.largest = max(abs(slab.grad).max() for slab in slabs)

    def all_reduce(self, comm, array, *, out):
        assert self.largest >= abs(array).max()
        return all_reduce(comm, array, out=out)


ALL_WIRES = WIRES | {"dgc, clipped": lambda: DGC(wire_clip=0.5), "waiting": Waiting}


def moved(comm, name, wire):
    """How far two steps move this rank's parameters, by slab; or the refusal of the wire."""
    alone = issubclass(STRATEGIES[name].kind, PipelineOnly)
    model = gpt(num_layers=2, tied=not alone)().initialize(0, np.float64)
    try:
        strategy = make_strategy(name, model, DeviceMesh(comm, pp=comm.size) if alone else comm,
                                 wire=ALL_WIRES[wire]())
    except ValueError as error:
        return str(error)
    strategy.optimizer = optimizer = SGD(strategy.slabs, lr=0.1)
    before = [slab.data.copy() for slab in strategy.slabs]
    for _ in range(2):
        optimizer.zero_grad()
        strategy.forward_backward([ROWS] * (comm.size if alone else 1))
        strategy.step(optimizer)
    if isinstance(strategy, TrainedApart):
        return np.concatenate([slab.data - old for slab, old in zip(strategy.slabs, before)])
    after = strategy.state_dict()
    first = gpt(num_layers=2, tied=not alone)().initialize(0, np.float64).state_dict()
    return np.concatenate([(after[key] - first[key]).ravel() for key in first])


@cache
def right(wire, num_ranks):
    return Cluster(num_ranks).run(lambda comm: moved(comm, "ddp", wire))[0][0]


def wanted(name, wire):
    """The refusal, or how far data parallelism gets with this wire; None if by other rules."""
    kind, tensors = STRATEGIES[name].kind, isinstance(ALL_WIRES[wire](), TensorWire)
    if not issubclass(kind, DistributedDataParallel):
        return None if wire == "fp32" else f"{kind.__name__} sends no gradients by a wire"
    if issubclass(kind, ZeRO1) and (tensors or wire == "waiting"):
        return f"{type(ALL_WIRES[wire]()).__name__} sums whole gradients"
    if name in ("elastic", "diloco"):
        return None
    return right(wire, 1 if issubclass(kind, TrainedApart) else 2)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_it_trains_or_refuses(name):
    for wire in ALL_WIRES:
        expected = wanted(name, wire)
        for found in Cluster(2).run(lambda comm, wire=wire: moved(comm, name, wire))[0]:
            if isinstance(expected, str) or isinstance(found, str):
                assert isinstance(found, str) and found.startswith(expected), (wire, found)
                continue
            assert np.linalg.norm(found) > 0.01, wire
            if expected is not None:
                error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
                assert error < (0.2 if wire == "int4" else 0.01), (wire, error)


def test_data_parallelism_itself():
    """Numbers as they are: the steps of one rank.  (By other wires: test_tensor_wires.py.)"""
    exact = right("fp32", 1)
    for wire in ("fp32", "waiting", "bf16", "fp16", "int8"):
        error = np.linalg.norm(right(wire, 2) - exact) / np.linalg.norm(exact)
        assert error < (1e-9 if wire in ("fp32", "waiting") else 0.01), wire


def test_weights_are_not_gathered_by_a_wire_of_gradients():
    def body(comm):
        model = gpt(num_layers=1)().initialize(0)
        strategy = make_strategy("fsdp", model, comm, gather_wire=ALL_WIRES["powersgd"]())
        with pytest.raises(ValueError, match="PowerSGD sums whole gradients"):
            strategy.forward_backward([ROWS])
    Cluster(2).run(body)
