"""Strategies by name, and what they refuse."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, Activation, GPTConfig
from minipar.optim import SGD
from minipar.parallel.hybrid.hybrid import Hybrid
from minipar.parallel.registry import STRATEGIES, make_strategy, shard_by_block
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import fully_shard
from minipar.parallel.zero.zero1 import ZeRO1


def refused(size: int, match: str, build) -> None:
    def body(comm):
        with pytest.raises(ValueError, match=match):
            build(comm)
    Cluster(size).run(body)


def mlp():
    return MLP([4, 5, 3]).initialize(0)


def mixed(comm):
    """Hybrid sharding of a layer, which the call for the rest forgets."""
    model = mlp()
    fully_shard(model[0], comm, shard=comm.split(comm.rank // 2),
                replicate=comm.split(comm.rank % 2))
    fully_shard(model, comm)


def crossed(comm):
    """Units of one size, along two axes."""
    model, rows, columns = mlp(), comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    fully_shard(model[0], comm, shard=rows, replicate=columns)
    fully_shard(model, comm, shard=columns, replicate=rows)


def test_what_does_not_exist_or_fit_is_refused():
    refused(2, "unknown strategy 'fdsp': choose from dp, ddp",
            lambda comm: make_strategy("fdsp", mlp(), comm))
    refused(2, "hybrid_shard goes with fsdp, not with zero1",
            lambda comm: make_strategy("zero1", mlp(), comm, hybrid_shard=2))
    refused(3, "3 ranks cannot be cut into groups of 2: choose a divisor of 3",
            lambda comm: make_strategy("fsdp", mlp(), comm, hybrid_shard=2))
    refused(2, "bucket_mb=0", lambda comm: make_strategy("ddp", mlp(), comm, bucket_mb=0))
    refused(2, "shards over 1 ranks and 1 replicas do not make up 2",
            lambda comm: fully_shard(mlp(), comm, shard=comm.split(comm.rank)))
    refused(4, r"MLP over \[0, 1, 2, 3\]: give every call the same shard=", mixed)
    refused(4, r"a part is sharded over the ranks \[", crossed)
    refused(2, "Activation has no parameters to shard",
            lambda comm: fully_shard(Activation("relu").initialize(0), comm))
    refused(2, "no microbatches",
            lambda comm: make_strategy("ddp", mlp(), comm).forward_backward([]))


def test_on_a_mesh_the_axes_decide():
    """Data parallelism over dp alone; a Hybrid where there is pp or tp."""
    def body(comm):
        kinds = [type(make_strategy("zero1", MLP([4, 6, 5, 3]).initialize(0), mesh, **options))
                 for mesh, options in ((comm, {"bucket_mb": 1}), (DeviceMesh(comm, dp=2), {}),
                                       (DeviceMesh(comm, tp=2), {}),
                                       (DeviceMesh(comm, pp=2), {"schedule": "gpipe"}))]
        assert kinds == [ZeRO1, ZeRO1, Hybrid, Hybrid]
    Cluster(2).run(body)


def test_options_go_with_some_strategies_and_axes():
    refused(2, "bucket_mb goes with ddp or zero1 or zero2, not with fsdp",
            lambda comm: make_strategy("fsdp", mlp(), comm, bucket_mb=1))
    refused(2, "schedule goes with a mesh with pp, cp or tp, not with ddp",
            lambda comm: make_strategy("ddp", mlp(), comm, schedule="1f1b"))
    refused(2, "bucket_mb does not go with pp, cp, tp or ep: leave it out",
            lambda comm: make_strategy("ddp", mlp(), DeviceMesh(comm, pp=2), bucket_mb=1))
    refused(2, "the tokens of a GPT over ranks, and an MLP has none",
            lambda comm: make_strategy("ddp", mlp(), DeviceMesh(comm, cp=2)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_needs_numbers_and_goes_to_one_strategy_only(name):
    refused(1, "the model has no numbers", lambda comm: make_strategy(name, MLP([2, 2]), comm))

    def twice(comm):
        model = mlp()
        make_strategy("fsdp", model, comm)
        make_strategy(name, model, comm)
    refused(2, "the model has no numbers|no parameters to shard", twice)


def test_units_are_the_blocks_and_the_root():
    """A GPT's blocks and what is left; an MLP's layers, which leave nothing."""
    def body(comm):
        gpt = shard_by_block(GPT(GPTConfig(5, num_layers=2, width=4)).initialize(0), comm)
        names = [unit.names[0] for unit in gpt.units]
        assert names == ["wte.weight", "h.0.ln_1.weight", "h.1.ln_1.weight"]
        assert gpt.units[0].names == ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
        assert len(shard_by_block(mlp(), comm).units) == 2
    Cluster(2).run(body)


def test_parameters_come_from_rank_0():
    def body(comm, name):
        strategy = make_strategy(name, MLP([4, 5, 3]).initialize(comm.rank), comm)
        optimizer = SGD(strategy.slabs, lr=0.0)
        rows = np.array(strategy.rows(2), int)
        x = np.ones((2, 4), np.float32)
        strategy.forward_backward([Microbatch(x[rows], np.zeros(2, int)[rows], rows)])
        strategy.step(optimizer)                # dp: the others learn them in the next forward
        return strategy.state_dict()
    expected = MLP([4, 5, 3]).initialize(0).state_dict()
    for name in STRATEGIES:
        for state in Cluster(2).run(lambda comm, name=name: body(comm, name))[0]:
            for key, value in expected.items():
                assert np.array_equal(state[key], value), (name, key)
