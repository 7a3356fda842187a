"""A training loop of one's own, without `forward_backward`: as lessons and learners write it."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy, sum_targets
from minipar.testing import worlds
from tests.support.cases import ALL, HYBRIDS, ONE_PROCESS, PIPELINES, Case
from tests.support.sweeps import every_mesh

DRAW = np.random.default_rng(0)
X, LABELS = DRAW.standard_normal((3, 8, 4)), DRAW.integers(0, 3, (3, 8))

INSTEAD = r"strategy\.forward_backward\(microbatches\), instead of"


def train(comm, make, mesh=None):
    seed = 0 if mesh else comm.rank
    strategy = make(MLP([4, 6, 5, 3]).initialize(seed, np.float64), mesh or comm)
    optimizer = SGD(strategy.slabs, lr=0.2, momentum=0.9)
    part = mesh["dp"] if mesh else comm
    mine = slice(*chunk_bounds(8, part.size)[part.rank])
    for x, labels in zip(X, LABELS):
        optimizer.zero_grad()
        with strategy.forward_context():
            loss = strategy.model.loss(x[mine], labels[mine], loss_divisor=8)
        strategy.backward(loss)
        strategy.step(optimizer)
    return strategy.state_dict()


@pytest.mark.parametrize("name", ONE_PROCESS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_gives_what_one_process_gives(name, p):
    (alone,), _ = Cluster(1).run(lambda comm: train(comm, Strategy))
    results, _ = Cluster(p).run(
        lambda comm: train(comm, lambda model, comm: make_strategy(name, model, comm)))
    for state in results:
        for parameter, values in alone.items():
            np.testing.assert_allclose(state[parameter], values, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("data_parallel", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
def test_also_on_a_mesh_of_dp_and_tp(data_parallel):
    (alone,), _ = Cluster(1).run(lambda comm: train(comm, Strategy))
    results, _ = Cluster(4).run(lambda comm: train(
        comm, partial(make_strategy, data_parallel), DeviceMesh(comm, dp=2, tp=2)))
    for state in results:
        for parameter, values in alone.items():
            np.testing.assert_allclose(state[parameter], values, rtol=1e-10, atol=1e-13)


WHOLE_BATCHES = [*PIPELINES, *[name for name in HYBRIDS if "sequence" not in name
                               and "pp 2" in name]]


@pytest.mark.parametrize("name", WHOLE_BATCHES)
@pytest.mark.one_in(2)
def test_where_a_batch_is_computed_as_a_whole_one_is_told_so(name):
    """With strategy.forward_context() and without it."""
    case = Case("gpt deep tied" if "cp" in name else "mlp deep")

    def body(comm):
        strategy = ALL[name](case.build(), comm)
        x, labels = case.batch(0)
        for context, error in ((strategy.forward_context, ValueError), (nullcontext, Exception)):
            with pytest.raises(error, match=INSTEAD), \
                    context():
                strategy.model.loss(x, labels, loss_divisor=10)
        with pytest.raises(ValueError, match=INSTEAD):
            strategy.backward(Tensor(np.ones(()), requires_grad=True))
    Cluster(4).run(body)


def test_several_stages_on_one_rank_are_a_pipeline_too():
    """A backward by hand would reduce the gradients of one of them only."""
    def body(comm):
        strategy = make_strategy("ddp", Case("mlp deep").build(), DeviceMesh(comm, pp=1, dp=2),
                                 schedule="interleaved", virtual_stages=2)
        with pytest.raises(ValueError, match=INSTEAD), strategy.forward_context():
            pass
    Cluster(2).run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize("name", every_mesh(4, [
    name for name in ALL if "sequence" not in name]))
@pytest.mark.parametrize("other", [0, 2])
@pytest.mark.one_in(4)
def test_different_numbers_of_microbatches_are_refused_on_every_rank(world, name, other):
    def body(comm):
        strategy = ALL[name](Case("gpt deep tied").build(), comm)
        batch = Microbatch(*Case("gpt deep tied").batch(0), np.arange(10))
        sentence = f"^rank 0 has 1 microbatches, but rank 2 has {other}: .* as many on each"
        with pytest.raises(ValueError, match=sentence):
            strategy.forward_backward([batch] * (other if comm.rank == 2 else 1))
    world.run(body)


@worlds(3, mpi=(3,))
def test_they_are_compared_by_one_control_message_round(world):
    def body(comm):
        strategy = ALL["ddp"](Case("mlp").build(), comm)
        comm.start_trace()
        assert sum_targets(strategy.comm, comm.rank, 2) == 3
        trace = comm.stop_trace()
        assert trace.num_sent(label="control") == comm.size - 1
        assert trace.num_sent() == 0
        with pytest.raises(ValueError, match=r"rank 0 has 0 microbatches, but rank 1 has 1"):
            sum_targets(strategy.comm, 1, comm.rank)
    world.run(body)
