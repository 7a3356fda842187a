"""Exercises of newton_schulz, delayed_averaging and pipedream_versions, on simulated ranks."""

from types import SimpleNamespace

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.optim.whole_tensors.newton_schulz import newton_schulz
from minipar.parallel.data.delayed_averaging import DelayedAveraging
from minipar.parallel.pipeline.late.pipedream import PipeDream
from minipar.parallel.strategy import Microbatch

SHAPES = [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)]


def by_singular_values(u):
    left, s, right = np.linalg.svd(u / np.linalg.norm(u), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return left * s @ right


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_take_the_polynomial(shape):
    u = 30 * np.random.default_rng(0).standard_normal(shape)
    found = newton_schulz(u)
    assert found.shape == u.shape
    np.testing.assert_allclose(found, by_singular_values(u), rtol=1e-9, atol=1e-11)


def test_a_stack_is_as_its_matrices():
    u = np.random.default_rng(1).standard_normal((3, 4, 6)) * [[[1]], [[1000]], [[0.001]]]
    found = newton_schulz(u)
    for one, other in zip(u, found):
        np.testing.assert_allclose(other, by_singular_values(one), rtol=1e-9, atol=1e-11)


def test_zeros_stay_zeros_and_the_argument_as_it_is():
    u = np.array([np.zeros((3, 2)), np.ones((3, 2))])
    before = u.copy()
    assert not newton_schulz(u)[0].any()
    np.testing.assert_array_equal(u, before)


def gradients(step, rank):
    return np.random.default_rng((step, rank)).standard_normal(26)


def steps_of(comm, delay, number, late=False):
    """How a rank's parameters moved by gradients that are given, and when each step ended."""
    strategy = DelayedAveraging(MLP([4, 3, 2, 1]).initialize(0, np.float64), comm, delay=delay)
    optimizer, (slab,) = SGD(strategy.slabs, lr=0.5), strategy.slabs
    before, start, ends = slab.data.copy(), comm.now(), []
    if late and comm.rank:
        comm.report_compute("late", 1_000_000, 0, 0.0)
    for step in range(number):
        optimizer.zero_grad()
        slab.complete_grad()[...] = gradients(step, comm.rank)
        strategy.update(optimizer)
        ends.append(comm.now() - start)
    return slab.data - before, ends


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_parameters_are_those_of_the_rule(p, delay):
    moved, _ = Cluster(p).run(lambda comm: steps_of(comm, delay, 5)[0])
    for rank, found in enumerate(moved):
        right = -0.5 * sum(gradients(step, rank) for step in range(5))
        for step in range(5 - delay):
            mean = sum(gradients(step, each) for each in range(p)) / p
            right -= 0.5 * (mean - gradients(step, rank))
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-12)


def test_a_step_does_not_wait_for_its_own_message():
    """Rank 1 begins a second later; rank 0's first step does not wait for it."""
    early, _ = Cluster(2, flops_per_second=1e6).run(lambda comm: steps_of(comm, 2, 3, True)[1])[0]
    assert early[0] < 0.5 and early[2] >= 0.9


def stage(rank, size, vertical_sync=False, first=0):
    return SimpleNamespace(pp=SimpleNamespace(rank=rank, size=size), first=first,
                           vertical_sync=vertical_sync)


def test_versions_of_microbatches():
    found = [[PipeDream.version(stage(rank, 4), k) for k in range(8)] for rank in range(4)]
    assert found == [[0, 0, 0, 0, 1, 2, 3, 4], [0, 0, 0, 1, 2, 3, 4, 5],
                     [0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7]]
    for rank in range(3):
        synced = stage(rank, 3, vertical_sync=True, first=10)
        assert [PipeDream.version(synced, k) for k in range(5)] == [10, 10, 10, 11, 12]


def test_stages_train_by_these_versions():
    """Two streams of microbatches on three stages; each stage ends at its newest version."""
    def body(comm):
        strategy = PipeDream(MLP([4, 5, 6, 3]).initialize(0, np.float64), DeviceMesh(comm, pp=3))
        strategy.optimizer = SGD(strategy.slabs, lr=0.1)
        batch = [Microbatch(np.eye(4)[[k % 3]], np.array([k % 3]), np.array([k]))
                 for k in range(6)]
        losses = [strategy.forward_backward(batch) for _ in range(8)]
        return losses, strategy.versions.newest
    losses, num_steps = Cluster(3).run(body)[0][0]
    assert num_steps == 48 and losses[-1] < losses[0]
