"""Exercises newton_schulz, delayed_averaging, pipedream_versions and two_bw_versions."""

from types import SimpleNamespace

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.optim.whole_tensors.newton_schulz import newton_schulz
from minipar.parallel.data.delayed_averaging import DelayedAveraging
from minipar.parallel.pipeline.late_weights.pipedream import PipeDream
from minipar.parallel.pipeline.late_weights.two_bw import TwoBW
from minipar.parallel.strategy import Microbatch, Strategy
from tests.support.agreement import check_same

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
    check_same(found, by_singular_values(u), f"a matrix {shape}", atol=1e-11)


def test_a_stack_is_as_its_matrices():
    u = np.random.default_rng(1).standard_normal((3, 4, 6)) * [[[1]], [[1000]], [[0.001]]]
    found = newton_schulz(u)
    for i, (one, other) in enumerate(zip(u, found)):
        check_same(other, by_singular_values(one), f"matrix {i} of a stack of 3", atol=1e-11)


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
        check_same(found, right, f"delay {delay}, rank {rank} of {p}: how far w has moved", 0)


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


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("p, per_step", [(1, 1), (2, 3), (4, 4)])
def test_two_versions(p, per_step, first):
    strategy = SimpleNamespace(pp=SimpleNamespace(rank=0, size=p), first=first, per_step=per_step,
                               vertical_sync=False)
    found = [TwoBW.version(strategy, k) for k in range(3 * per_step)]
    right = [max(0, first + t - 1) for t in range(3) for _ in range(per_step)]
    assert found == right, f"{per_step} microbatches a step, {first} steps before: expected the " \
                           f"versions {right} of three batches, got {found}"


def test_two_bw_is_sgd_that_is_one_step_late():
    """Two streams of three batches on two stages; one process with all versions of the weights."""
    draw = np.random.default_rng(0)
    batches = [[Microbatch(draw.standard_normal((2, 4)), draw.integers(0, 3, 2), np.arange(2))
                for _ in range(2)] for _ in range(6)]

    def body(comm):
        strategy = TwoBW(MLP([4, 5, 3]).initialize(0, np.float64), DeviceMesh(comm, pp=2))
        strategy.optimizer = SGD(strategy.slabs, lr=0.5)
        for stream in (batches[:3], batches[3:]):
            strategy.forward_backward(sum(stream, []))
        return strategy.state_dict()
    found = Cluster(2).run(body)[0][0]

    def alone(comm):
        model = MLP([4, 5, 3]).initialize(0, np.float64)
        strategy, (slab,) = Strategy(model, comm), model.slabs
        versions = [slab.data.copy()]
        for t, batch in enumerate(batches):
            slab.data[...] = versions[max(0, t - 1)]
            slab.zero_grad()
            strategy.forward_backward(batch)
            versions.append(versions[t] - 0.5 * slab.complete_grad())
        slab.data[...] = versions[-1]
        return model.state_dict()
    for name, right in Cluster(1).run(alone)[0][0].items():
        check_same(found[name], right, f"{name} after two streams of three steps")
