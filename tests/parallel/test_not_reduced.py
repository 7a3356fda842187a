"""A step on gradients that were not reduced is refused by every strategy, on every mesh."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD
from minipar.parallel.errors import NOT_REDUCED_MESSAGE
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support.cases import ALL, Case
from tests.support.sweeps import every_mesh

MESHES = [{"pp": 4}, {"dp": 4}, {"tp": 4}, {"pp": 2, "dp": 2}, {"pp": 2, "tp": 2},
          {"dp": 2, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}]
OF_MESHES = {
    f"{' '.join(f'{axis}{size}' for axis, size in sizes.items())} {how} {schedule}":
        (how, sizes, {"schedule": schedule} if "pp" in sizes else {})
    for sizes in MESHES for how in ("ddp", "zero1", "zero2", "fsdp")
    for schedule in (SCHEDULES if sizes == {"pp": 4} and how == "ddp" else ("1f1b",))}


def gpt():
    return GPT(GPTConfig(11, context=6, num_layers=6, num_heads=4, width=8)).initialize()


def check_refused(comm, strategy, batch):
    """Microbatches inside no_sync() alone, before a right step and after it."""
    rows = list(strategy.rows(len(batch[0])))
    mine = Microbatch(*(array[rows] for array in batch))
    optimizer = SGD(strategy.slabs, lr=0.1)
    if strategy.reduces_each_backward:
        with pytest.raises(ValueError, match="keeps no whole gradient"), strategy.no_sync():
            pass
        return
    for _ in range(2):
        before = strategy.state_dict()
        with strategy.no_sync():
            strategy.run_microbatch(mine, 10.0)
        with pytest.raises(ValueError) as refused:
            strategy.step(optimizer)
        assert str(refused.value) == NOT_REDUCED_MESSAGE
        for name, values in strategy.state_dict().items():
            assert np.array_equal(values, before[name]), name
        optimizer.zero_grad()
        strategy.forward_backward([mine, mine])
        strategy.step(optimizer)
        optimizer.zero_grad()


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("name", every_mesh(4, [
    name for name in ALL if "sequence" not in name]))
@pytest.mark.one_in(8)
def test_microbatches_inside_no_sync_alone(world, name):
    case = Case("gpt deep tied", parts=(8,))
    batch = *case.batch(0), np.arange(8)
    world.run(lambda comm: check_refused(comm, ALL[name](case.build(), comm), batch))


@pytest.mark.parametrize("name", OF_MESHES)
@pytest.mark.one_in(6)
def test_on_every_mesh(name):
    how, sizes, options = OF_MESHES[name]
    ids = np.random.default_rng(0).integers(0, 11, (8, 6))
    Cluster(int(np.prod([*sizes.values()]))).run(lambda comm: check_refused(
        comm, make_strategy(how, gpt(), DeviceMesh(comm, **sizes), **options),
        (ids, ids, np.arange(8))))


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", ["alone", "graph", "dp", "ddp", "zero1", "zero2"])
def test_loss_backward_instead_of_the_strategy_s(world, name):
    def body(comm):
        case = Case("mlp")
        strategy = ALL[name](case.build(), comm)
        optimizer, (x, labels) = SGD(strategy.slabs, lr=0.1), case.batch(0)
        for _ in range(2):
            with strategy.forward_context():
                strategy.model.loss(x, labels).backward()
            with pytest.raises(ValueError, match=r"call strategy.backward\(loss\) instead of"):
                strategy.step(optimizer)
            optimizer.zero_grad()
            with strategy.forward_context():
                loss = strategy.model.loss(x, labels)
            strategy.backward(loss)
            strategy.step(optimizer)
            optimizer.zero_grad()
    world.run(body)
