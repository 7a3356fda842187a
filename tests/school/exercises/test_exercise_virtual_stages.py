"""Exercises interleaved and half_a_backward."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.pipeline.executor import RankBatch
from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.schedules import interleaved
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.strategy import Microbatch, Strategy

SIZES = [(1, 3, 2), (2, 2, 2), (2, 4, 3), (2, 5, 2), (3, 7, 2), (4, 8, 2), (4, 10, 2), (4, 11, 3)]


def held(row):
    """The number of microbatches in flight after each action, each stage's counted."""
    counts = [0]
    for action in row:
        counts.append(counts[-1] + (1 if action.kind == "F" else -1))
    return max(counts)


# interleaved

def test_two_ranks_with_two_stages_each():
    assert [" ".join(map(str, row)) for row in interleaved(2, 4)] == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"]


@pytest.mark.parametrize("p, m, v", SIZES)
def test_interleaving_divides_the_bubble(p, m, v):
    """(v m + p - 1)(F + B), a microbatch's F and B on one of v stages; also where p does not
    divide m."""
    assert simulate(interleaved(p, m, v), Times(1, 1, 1)).makespan() == 3 * (v * m + p - 1)


@pytest.mark.parametrize("p, m, v", [(2, 4, 2), (2, 8, 3), (4, 8, 2), (4, 16, 2)])
def test_interleaving_holds_no_more_than_it_must(p, m, v):
    for rank, row in enumerate(interleaved(p, m, v)):
        assert held(row) == min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v), f"on rank {rank}"


def test_fewer_microbatches_than_ranks_are_one_group():
    schedule = interleaved(4, 2)
    assert len(simulate(schedule).intervals) == 2 * 2 * 8       # it is refused if it has a fault
    assert [str(action) for action in schedule[1][:4]] == ["1F0", "1F1", "5F0", "5F1"]


def test_groups_of_a_size_that_is_told():
    row = interleaved(2, 6, 2, group_size=3)[0]
    assert [str(a) for a in row if a.kind == "F"] == [
        f"{stage}F{i}" for group in ((0, 1, 2), (3, 4, 5)) for stage in (0, 2) for i in group]
    for size in (1, 7):
        with pytest.raises(ValueError, match="groups of 2 to 6"):
            interleaved(2, 6, 2, group_size=size)


# half_a_backward

def batches_of(m):
    draw = np.random.default_rng(0)
    return [Microbatch(draw.standard_normal((2, 4)), draw.integers(0, 3, 2), np.arange(2))
            for _ in range(m)]


def mlp():
    return MLP([4, 5, 6, 7, 3]).initialize(0, np.float64)


def pipeline(comm, name):
    return Strategy(mlp(), DeviceMesh(comm, pp=comm.size), schedule=name)


def gradients(strategy):
    return strategy.slabs.gradients()


class Bench:
    """Both stages of a model on one rank, and one microbatch that went forward through both."""

    def __init__(self, comm):
        self.strategy, self.num_polls = pipeline(comm, "interleaved"), 0
        self.run = RankBatch(self.strategy.pipeline, {}, [0, 0], batches_of(1), 2.0, 0, 0)
        self.run.poll, self.run.last = self.poll, {0: 0, 1: 0}
        y = self.run.forward(Action("F", 0, 0), None)
        self.run.forward(Action("F", 1, 0), y)

    def poll(self):
        self.num_polls += 1


def workspace():
    return Cluster(1).run(Bench)[0][0]


def test_i_gives_what_the_stage_before_waits_for():
    ours, theirs = workspace(), workspace()
    dx = ours.run.input_gradient(Action("I", 1, 0), None)
    expected = theirs.run.backward(Action("B", 1, 0), None)
    assert dx is not None, "stage 0 waits for the gradient of x"
    np.testing.assert_allclose(dx, expected, rtol=1e-12)
    assert ours.run.input_gradient(Action("I", 0, 0), dx) is None, "nobody is before stage 0"


def test_i_leaves_the_weights_to_w():
    """None of them has a gradient after I; after W they have those of B."""
    ours, theirs = workspace(), workspace()
    dx = ours.run.input_gradient(Action("I", 1, 0), None)
    ours.run.input_gradient(Action("I", 0, 0), dx)
    assert all(p.grad is None for slab in ours.strategy.slabs for p in slab.parameters)
    assert len(ours.run.deferred) == 2, "both stages still have their W to do"
    ours.run.weight_gradients(Action("W", 0, 0), None)
    ours.run.weight_gradients(Action("W", 1, 0), None)
    theirs.run.backward(Action("B", 0, 0), theirs.run.backward(Action("B", 1, 0), None))
    expected = gradients(theirs.strategy)
    for name, found in gradients(ours.strategy).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-12, err_msg=name)


def test_messages_move_on_during_i():
    ours = workspace()
    before = ours.num_polls
    ours.run.input_gradient(Action("I", 1, 0), None)
    assert ours.num_polls > before


@pytest.mark.parametrize("name", ["zb_h1", "zb_v"])
def test_zero_bubble_schedules_train(name):
    def body(comm, name):
        strategy = pipeline(comm, name)
        strategy.forward_backward(batches_of(3))
        return gradients(strategy)
    expected = Cluster(1).run(lambda comm: body(comm, "gpipe"))[0][0]
    found = Cluster(2).run(lambda comm: body(comm, name))[0][0]
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-10, err_msg=key)


def test_dp_sums_what_w_computes():
    """Two ranks of dp with the same rows get the gradients of one, bucket by bucket."""
    def body(comm):
        strategy = DistributedDataParallel(mlp(), DeviceMesh(comm, pp=2, dp=2), bucket_mb=1e-6,
                                           first_bucket_mb=1e-6, schedule="zb_h1")
        strategy.forward_backward(batches_of(3))
        return gradients(strategy)

    def alone(comm):
        strategy = Strategy(mlp(), comm)
        strategy.forward_backward(batches_of(3))
        return gradients(strategy)
    expected, found = Cluster(1).run(alone)[0][0], Cluster(4).run(body)[0][0]
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-10, err_msg=key)
