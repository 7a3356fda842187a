"""Different ranks missing different parameters in one step; backwards that must not be; replicas.

What gathers weights together cannot serve ranks that use different ones, and says so.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.testing import worlds
from tests.support.cases import ALL, STRATEGIES
from tests.support.picky import check_picky, train_picky

FSDP = [name for name in STRATEGIES if name.startswith("fsdp")]


@worlds(2, 3, 4, mpi=(3,), slow_mpi=(2, 4))          # 4 real ranks: test_matrix.py
@pytest.mark.parametrize("name", sorted({*STRATEGIES} - {"zero3"}))
@pytest.mark.one_in(2)
def test_ranks_that_miss_different_parameters(world, name):
    check_picky(world, name)


@worlds(2, 4, mpi=(2,))
@pytest.mark.parametrize("name, apart", [("zero3", False), *((name, True) for name in FSDP)])
def test_weights_that_only_some_ranks_gather_are_refused(world, name, apart):
    """Sizes are equal here: without the check the ranks would mix up left and right, silently."""
    def body(comm):
        with pytest.raises(RuntimeError, match="different weights than rank 0.*every rank must"):
            train_picky(comm, name, comm.size, apart)
    world.run(body)


@pytest.mark.parametrize("name", FSDP)
def test_other_sizes_are_refused_too(name):
    """Three ranks: the middle one needs both sides, and meets the others in another gather."""
    with pytest.raises((RuntimeError, ValueError)):
        Cluster(3).run(lambda comm: train_picky(comm, name, 2, apart=True))


@worlds(4, mpi=(4,))
def test_replicas_of_hybrid_sharding_may_use_other_units(world):
    """Ranks 0 and 1, who share shards, go left; 2 and 3 right."""
    check_picky(world, "fsdp hybrid", apart=True, num_groups=2)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", ["ddp", "zero1"])
def test_gradients_that_were_reduced_are_not_reduced_again(world, name):
    def body(comm):
        model = MLP([4, 5, 3]).initialize(0, np.float64)
        strategy = ALL[name](model, comm)
        x, labels = np.ones((2, 4)), np.array([0, 1])
        strategy.backward(model.loss(x, labels))
        with pytest.raises(ValueError, match=r"zero_grad\(\) first.*no_sync"):
            strategy.backward(model.loss(x, labels))
        for slab in strategy.slabs:
            slab.zero_grad()
        strategy.backward(model.loss(x, labels))
    world.run(body)


@worlds(3, mpi=(3,))
@pytest.mark.parametrize("name", ["ddp", "zero1"])
def test_no_sync_sends_nothing(world, name):
    """Two backwards inside, one after: gradients add up on the rank and are reduced once."""
    def body(comm):
        model = MLP([4, 5, 3]).initialize(0, np.float64)
        strategy = ALL[name](model, comm)
        x, labels = np.full((2, 4), comm.rank + 1.0), np.array([0, 1])
        strategy.backward(model.loss(x, labels))
        once = strategy.slabs.gradients()
        for slab in strategy.slabs:
            slab.zero_grad()
        comm.start_trace()
        with strategy.no_sync():
            for _ in range(2):
                strategy.backward(model.loss(x, labels))
        assert comm.trace.num_sent() == 0
        strategy.backward(model.loss(x, labels))
        assert comm.stop_trace().num_sent() > 0
        for key, after in strategy.slabs.gradients().items():
            np.testing.assert_allclose(after, 3 * once[key], rtol=1e-12, err_msg=key)
    world.run(body)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2"])
def test_a_step_on_gradients_of_one_rank_is_refused(world, name):
    """loss.backward() instead of strategy.backward(loss), in the first step or a later one."""
    def body(comm):
        model = MLP([4, 5, 3]).initialize(0, np.float64)
        strategy = ALL[name](model, comm)
        optimizer, x, labels = SGD(strategy.slabs), np.ones((2, 4)), np.array([0, 1])
        for _ in range(2):
            model.loss(x, labels).backward()
            with pytest.raises(ValueError, match=r"call strategy.backward\(loss\)"):
                strategy.step(optimizer)
            optimizer.zero_grad()
            strategy.backward(model.loss(x, labels))
            strategy.step(optimizer)
            optimizer.zero_grad()
        if not strategy.reduces_each_backward:
            with strategy.no_sync():
                strategy.backward(model.loss(x, labels))
            with pytest.raises(ValueError, match=r"outside no_sync\(\)"):
                strategy.step(optimizer)
    world.run(body)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", ["zero2", "zero3", "fsdp"])
def test_no_sync_is_refused_where_there_is_no_room(world, name):
    def body(comm):
        strategy = ALL[name](MLP([4, 5, 3]).initialize(0, np.float64), comm)
        with pytest.raises(ValueError, match="keeps no whole gradient.*leave no_sync"), \
                strategy.no_sync():
            pass
    world.run(body)


@worlds(2, 4, mpi=(4,))
def test_replicas_that_diverged_are_named(world):
    def body(comm):
        model = MLP([4, 5, 3]).initialize(comm.rank, np.float64)
        strategy = DistributedDataParallel(model, comm)         # rank 0's values for everyone
        (slab,) = strategy.slabs
        assert not ranks_that_differ(comm, slab.data.tobytes())
        if comm.rank == comm.size - 1:
            model[2].bias.data[1] = np.nextafter(0.0, 1.0)      # the least possible difference
        assert ranks_that_differ(comm, slab.data.tobytes()) == str(comm.size - 1)
    world.run(body)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_failed_step_leaves_no_hang(world, name):
    """A loss that cannot be computed is an error on every rank, and the next step works."""
    def body(comm):
        strategy = ALL[name](MLP([4, 5, 3]).initialize(0, np.float64), comm)
        mine = list(strategy.rows(4))
        x, labels = np.ones((4, 4)), np.array([0, 1, 2, 0])
        with pytest.raises(ValueError):
            strategy.forward_backward([Microbatch(x[mine][:, :3], labels[mine], mine)])
        loss = strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        assert np.isfinite(loss)
    world.run(body)


def test_a_sharded_module_is_not_used_without_its_strategy():
    def body(comm):
        model = MLP([4, 5, 3]).initialize(0, np.float64)
        FullyShardedDataParallel(model, comm)
        with pytest.raises(RuntimeError, match="strategy.forward"):
            model.loss(np.ones((2, 4)), np.array([0, 1]))
    Cluster(2).run(body)
