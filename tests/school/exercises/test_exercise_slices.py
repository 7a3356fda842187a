"""Exercises slice_attention and slice_backward: TeraPipe beside one process, on whole sequences."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.parallel.pipeline.terapipe import TeraPipe
from minipar.parallel.strategy import Microbatch, Strategy
from tests.support.agreement import check_same

TIME = 6


def model():
    return GPT(GPTConfig(11, TIME, 3, 2, 8)).initialize(0, np.float64)


def batch():
    """Two sequences in two microbatches."""
    draw = np.random.default_rng(0)
    return [Microbatch(draw.integers(0, 11, (1, TIME)), draw.integers(0, 11, (1, TIME)),
                       np.array([i])) for i in range(2)]


def gradients_of(strategy):
    """The loss of two batches, and the gradients of the second by name."""
    losses = []
    for _ in range(2):
        for slab in strategy.slabs:
            slab.zero_grad()
        losses.append(strategy.forward_backward(batch()))
    return losses, strategy.slabs.named([slab.complete_grad() for slab in strategy.slabs])


def in_slices(p, num_slices):
    def body(comm):
        strategy = TeraPipe(model(), DeviceMesh(comm, pp=p), num_slices=num_slices)
        found = gradients_of(strategy)
        return *found, len(strategy.slices.kept)
    return Cluster(p).run(body)[0]


@pytest.mark.parametrize("p, num_slices", [(1, 1), (1, 2), (2, 3), (3, 4)])
def test_slices_are_as_whole_sequences(p, num_slices):
    losses, right = Cluster(1).run(lambda comm: gradients_of(Strategy(model(), comm)))[0][0]
    for rank, (found, gradients, kept) in enumerate(in_slices(p, num_slices)):
        where = f"num_slices={num_slices}, rank {rank} of {p}: "
        check_same(found, losses, where + "the losses of two batches")
        for name, gradient in right.items():
            check_same(gradients[name], gradient, f"{where}the gradient of {name}", atol=1e-11)
        assert kept == 0, f"{where}expected no slice to be kept after the batch, got {kept}"
