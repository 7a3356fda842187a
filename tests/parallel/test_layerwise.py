"""LAMB and LARS: the ratios are those of whole tensors on every layout."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.nn import MLP
from minipar.optim.whole_tensors.lamb import LAMB
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support import expert_runs, sweeps
from tests.support.cases import HYBRIDS, STRATEGIES, Case, check


@worlds(1, 3, 4, mpi=(3,))
@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(4)
def test_every_strategy_equals_one_process(world, name, optimizer):
    """DeepSpeed 490: a flat shard had one ratio for many tensors."""
    check(world, name, Case(optimizer=optimizer, parts=(7, 4), max_norm=0.5))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
@pytest.mark.parametrize("name", sweeps.every(4, [
    name for name in HYBRIDS if not name.endswith("sequence") or name.startswith("dp 2 × tp")]))
@pytest.mark.one_in(4)
def test_every_mesh_equals_one_process(world, name, optimizer):
    check(world, name, Case("gpt deep tied", optimizer=optimizer, parts=(4, 4)))


@worlds(2, mpi=())
@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_pipelines_equal_one_process(world, name):
    check(world, name, Case("gpt deep tied", optimizer="lamb", parts=(4, 4)))


@worlds(4, mpi=())
@pytest.mark.parametrize("sizes", [{"ep": 4}, {"dp": 4, "ep": 2}, {"tp": 2, "ep": 2}])
@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp"])
@pytest.mark.one_in(2)
def test_experts_equal_one_process(world, sizes, name):
    expert_runs.check(world, expert_runs.on(sizes, name), "deepseek", optimizer="lamb", name=name)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_a_shard_sends_two_numbers_of_each_tensor_and_a_whole_none(p):
    def sent(name):
        def body(comm):
            strategy = make_strategy(name, MLP([64, 32, 16]).initialize(0, np.float64), comm)
            optimizer = LAMB(strategy.slabs)
            strategy.forward_backward([Microbatch(np.ones((1, 64)), np.array([1]), np.array([0]))])
            comm.start_trace()
            optimizer.step()
            return comm.stop_trace().bytes_sent()
        return sum(Cluster(p).run(body)[0])
    def one_all_reduce(comm):
        comm.start_trace()
        all_reduce(comm, np.zeros((4, 2)))
        return comm.stop_trace().bytes_sent()
    assert sent("ddp") == 0
    assert sent("zero1") == sum(Cluster(p).run(one_all_reduce)[0])
