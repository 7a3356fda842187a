"""How many calls of minipar lie between an idea and its message: a use of a weight, or a gradient
that is complete, and the ring's own function.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from greenlet import getcurrent

import minipar
from minipar.comm import Cluster
from minipar.comm.algorithms import ALGORITHMS
from minipar.nn import MLP
from minipar.nn.module import Module, replace_module
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.data.ddp_by_autograd import data_parallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.tensor.layers import TensorSplit, split_columns, split_rows
from minipar.parallel.zero.fsdp import FullyShardedDataParallel, ZeRO3
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.parallel.zero.zero2 import ZeRO2
from minipar.parallel.zero.zero3_by_autograd import ShardedParameters

HERE = str(Path(minipar.__file__).parent)
MOST = 6
X, LABELS = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])
Stack = list[str]


def stack_here(frame: FrameType | None) -> Stack:
    """The functions of minipar on the stack, the innermost first: those of a Work, and of who
    resumed it."""
    names, worker = [], getcurrent()
    while worker is not None:
        while frame is not None:
            if frame.f_code.co_filename.startswith(HERE):
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        worker = worker.parent
        frame = None if worker is None else worker.gr_frame
    return names


@contextmanager
def noting_rings(stacks: list[Stack], monkeypatch: Any) -> Iterator[None]:
    """Context in which each call of a ring adds the stack that led to it."""
    def noted(ring: Callable) -> Callable:
        @wraps(ring)
        def run(*arguments: Any) -> Any:
            stacks.append(stack_here(sys._getframe(1)))
            return ring(*arguments)
        return run

    with monkeypatch.context() as patch:
        for operation in ("all_gather", "all_reduce", "reduce_scatter"):
            ring = ALGORITHMS[operation]["ring"]
            patch.setitem(ALGORITHMS[operation], "ring", ring._replace(run=noted(ring.run)))
        yield


def hops(stacks: list[Stack], since: str) -> int:
    """The most calls between the innermost `since` and a ring; at least one ring has it."""
    counts = [stack.index(since) for stack in stacks if since in stack]
    assert counts, f"no ring was called by {since}: {stacks[:3]}"
    return max(counts)


def step(strategy: Any) -> None:
    """Forward and backward of one microbatch."""
    strategy.forward_backward([Microbatch(X, LABELS, np.arange(4))])


def model() -> MLP:
    return MLP([6, 8, 8, 3]).initialize(0)


def by_graph(comm: Any) -> None:
    data_parallel(model(), comm).loss(X, LABELS, 8).backward()


def zero3_by_graph(comm: Any) -> None:
    zero3 = ShardedParameters(mlp := model(), comm)
    with zero3.forward_context():
        loss = mlp.loss(X, LABELS, 8)
    loss.backward()


def tensor_parallel(comm: Any) -> None:
    mlp = MLP([6, 8, 8, 3])
    split_columns(mlp[2], split := TensorSplit(comm))
    replace_module(mlp, mlp[4], split_rows(mlp[4], split))
    mlp.initialize(0).loss(X, LABELS, 4).backward()


@pytest.mark.parametrize("program, since", [
    (by_graph, "backward"),
    (zero3_by_graph, Module.__getattr__.__qualname__),
    (tensor_parallel, "RowLinear.forward"),
    (tensor_parallel, "backward"),
    (lambda comm: step(FullyShardedDataParallel(model(), comm)), Module.__getattr__.__qualname__),
    (lambda comm: step(ZeRO3(model(), comm)), Module.__getattr__.__qualname__),
], ids=["copy_to", "ZeRO-3 as a graph", "row-parallel", "column-parallel", "fsdp", "zero3"])
def test_from_a_use_of_a_weight_to_the_ring(program, since, monkeypatch):
    stacks: list[Stack] = []
    with noting_rings(stacks, monkeypatch):
        Cluster(2, chooser=None).run(program)
    assert hops(stacks, since) <= MOST, stacks


@pytest.mark.parametrize("kind", [DistributedDataParallel, ZeRO1, ZeRO2])
def test_from_a_complete_gradient_to_the_ring(kind, monkeypatch):
    stacks: list[Stack] = []
    with noting_rings(stacks, monkeypatch):
        Cluster(2, chooser=None).run(lambda comm: step(kind(model(), comm, 1e-5, 1e-5)))
    assert hops(stacks, "ReductionQueue._on_ready") <= MOST, stacks
