"""Strategies by name, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig, Linear, Module, Parameter
from minipar.nn.parameter import ones
from minipar.optim import SGD
from minipar.parallel.context.rank_groups import ContextOptions
from minipar.parallel.pipeline.pipeline_only import PipelineOnly
from minipar.parallel.registry import STRATEGIES, make_strategy, strategies_with
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.testing import worlds
from tests.support.cases import ONE_PROCESS


def refused(size: int, match: str, build) -> None:
    def body(comm):
        with pytest.raises(ValueError, match=match):
            build(comm)
    Cluster(size).run(body)


def mlp():
    return MLP([4, 5, 3]).initialize(0)


def test_what_does_not_exist_or_fit_is_refused():
    refused(2, "unknown strategy 'fdsp': choose from dp, ddp",
            lambda comm: make_strategy("fdsp", mlp(), comm))
    refused(2, "hybrid_shard goes with zero3 or fsdp, not with zero1",
            lambda comm: make_strategy("zero1", mlp(), comm, hybrid_shard=2))
    refused(3, "3 ranks cannot be cut into groups of 2: choose a divisor of 3",
            lambda comm: make_strategy("fsdp", mlp(), comm, hybrid_shard=2))
    refused(2, "1 ranks cannot be cut into groups of 2: choose a divisor of 1",
            lambda comm: make_strategy("fsdp", mlp(), DeviceMesh(comm, tp=2), hybrid_shard=2))
    refused(4, "the mesh has replicate already: leave hybrid_shard=2 out",
            lambda comm: make_strategy("fsdp", mlp(), DeviceMesh(comm, replicate=2, dp=2),
                                       hybrid_shard=2))
    refused(2, "bucket_mb=0", lambda comm: make_strategy("ddp", mlp(), comm, bucket_mb=0))
    refused(4, "a strategy's mesh has the axes pp, replicate, dp, cp and tp, not shard",
            lambda comm: make_strategy("fsdp", mlp(), DeviceMesh(
                comm, replicate=2, shard=2, order=("replicate", "shard"))))
    refused(2, "every=0: parameters are exchanged",
            lambda comm: make_strategy("local_sgd", mlp(), comm, every=0))
    refused(2, "each rank of dp trains alone, with all parameters: leave ep out",
            lambda comm: make_strategy("local_sgd", mlp(), DeviceMesh(comm, ep=2)))
    refused(2, "no microbatches",
            lambda comm: make_strategy("ddp", mlp(), comm).forward_backward([]))


def test_hybrid_shard_keeps_the_nesting_of_the_mesh():
    """Groups of neighbours along dp, where dp is the fastest axis: next to each other."""
    def body(comm):
        mesh = DeviceMesh(comm, dp=4, tp=2, order=("tp", "dp"))
        cut = make_strategy("fsdp", mlp(), mesh, hybrid_shard=2).mesh
        assert cut.shape == {"tp": 2, "replicate": 2, "dp": 2} and cut.axes[-1] == "dp"
        return cut.ranks_along("dp")
    assert Cluster(8).run(body)[0][0] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_on_a_mesh_the_axes_decide():
    """One class, with a pipeline where there is pp."""
    def body(comm):
        made = [make_strategy("zero1", MLP([4, 6, 5, 3]).initialize(0), mesh, **options)
                for mesh, options in ((comm, {"bucket_mb": 1}), (DeviceMesh(comm, dp=2), {}),
                                      (DeviceMesh(comm, tp=2), {}),
                                      (DeviceMesh(comm, pp=2), {"schedule": "gpipe"}))]
        assert [type(strategy) for strategy in made] == [ZeRO1] * 4
        assert [strategy.pipeline is not None for strategy in made] == [False, False, False, True]
    Cluster(2).run(body)


def test_options_go_with_some_strategies_and_axes():
    refused(2, f"bucket_mb goes with {' or '.join(strategies_with('bucket_mb'))}, not with fsdp",
            lambda comm: make_strategy("fsdp", mlp(), comm, bucket_mb=1))
    refused(2, "schedule goes with a mesh with pp: give DeviceMesh",
            lambda comm: make_strategy("ddp", mlp(), comm, schedule="1f1b"))
    refused(2, "a mesh has the axes pp, dp, cp and tp|dp is over all ranks, with no other axis",
            lambda comm: make_strategy("dp", mlp(), DeviceMesh(comm, pp=2)))
    refused(2, "the tokens of a GPT over ranks, and an MLP has none",
            lambda comm: make_strategy("ddp", mlp(), DeviceMesh(comm, cp=2)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_options_of_a_mesh_are_refused_without_its_axis(name):
    for option, value in {"schedule": "1f1b", "virtual_stages": 2, "cuts": [1],
                          "scatter_gather": True, "sequence_parallel": True,
                          "context": ContextOptions("ring")}.items():
        refused(2, f"{option}|mesh", lambda comm, given={option: value}: make_strategy(
            name, GPT(GPTConfig(7, 4, 2, 2, 8)).initialize(0), comm, **given))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_needs_numbers_and_goes_to_one_strategy_only(name):
    def ranks(comm):
        needs_pp = issubclass(STRATEGIES[name].kind, PipelineOnly)
        return DeviceMesh(comm, pp=comm.size) if needs_pp else comm
    refused(1, "the model has no numbers",
            lambda comm: make_strategy(name, MLP([2, 2]), ranks(comm)))

    def twice(comm):
        model = mlp()
        make_strategy("fsdp", model, comm)
        make_strategy(name, model, ranks(comm))
    refused(2, "the model has no numbers|no parameters to shard", twice)


def names_of_units(strategy):
    return [[segment.name for flat in unit.flats for segment in flat.segments]
            for unit in strategy.units]


def test_units_are_the_parts_of_the_chain():
    """A tied embedding and head are one; `units` chooses other modules."""
    def body(comm):
        config = GPTConfig(5, num_layers=2, width=4)
        root, first, second = names_of_units(
            make_strategy("fsdp", GPT(config).initialize(0), comm))
        assert root == ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
        assert first[0] == "h.0.ln_1.weight" and second[0] == "h.1.ln_1.weight"
        model = GPT(replace(config, tied=False)).initialize(0)
        embed, *_, head = names_of_units(make_strategy("fsdp", model, comm))
        assert embed == ["wte.weight", "wpe.weight"] and head[-1] == "lm_head.weight"
        assert len(names_of_units(make_strategy("fsdp", mlp(), comm))) == 2
        model = GPT(config).initialize(0)
        parts = [part for block in model.h for part in (block, block.attn)]
        found = names_of_units(make_strategy("fsdp", model, comm, units=parts))
        assert [len(names) for names in found] == [4, 8, 4, 8, 4]
        assert all(name.startswith("h.1.attn") for name in found[4])
    Cluster(2).run(body)


def test_a_parameter_belongs_to_the_innermost_unit_in_any_order():
    """And, of two units where neither is in the other, to the smaller, or the first in the model.

    Blocks, their attentions and a layer of one in five orders; the embedding that is also the head
    in two.
    """
    def body(comm):
        for order in range(5):
            model = GPT(GPTConfig(5, num_layers=2, width=4)).initialize(0)
            nested = [part for block in model.h for part in (block.attn.c_attn, block.attn, block)]
            units = [nested, nested[::-1], nested[2:] + nested[:2], nested[1::2] + nested[::2],
                     iter(nested)][order]
            found = names_of_units(make_strategy("fsdp", model, comm, units=units))
            assert [len(names) for names in found] == [4, 8, 2, 2, 8, 2, 2]
            assert found[2] == ["h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias"], order
            assert found[3] == ["h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias"], order
        for order in (1, -1):
            model = Tied().initialize(0)
            embed, head = names_of_units(make_strategy(
                "fsdp", model, comm, units=[model.embed, model.head][::order]))
            assert embed == ["embed.table", "embed.shift"] and head == ["head.scale"]
    Cluster(2).run(body)


class Tied(Module):
    """Two modules of two parameters, one of which both have."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = Module(), Module()
        self.embed.table, self.embed.shift = Parameter((3, 2), ones), Parameter((2,), ones)
        self.head.scale, self.head.table = Parameter((2,), ones), self.embed.table


def test_a_wrong_unit_is_refused_in_one_line():
    one_line = r"\A(?=[^\n]*\Z).*"
    refused(2, one_line + "units are modules of the model, and a str here is none of them: give",
            lambda comm: make_strategy("fsdp", mlp(), comm, units=["0"]))
    refused(2, one_line + "and a Linear here is none",
            lambda comm: make_strategy("fsdp", mlp(), comm, units=[Linear(5, 3)]))
    refused(2, one_line + "and a int here is none",
            lambda comm: make_strategy("fsdp", mlp(), comm, units=2))
    refused(2, one_line + "FSDP reduces units, which bucket_mb does not cut: leave it out",
            lambda comm: FullyShardedDataParallel(mlp(), comm, bucket_mb=1))

    def body(comm):
        model = mlp()
        assert len(names_of_units(make_strategy("fsdp", model, comm, units=model[0]))) == 2
    Cluster(2).run(body)


@worlds(2, 3, mpi=(2,))
def test_the_order_of_units_changes_nothing_in_a_step(world):
    """Attention in units of its own: the order of gathers, and DDP's weights."""
    def body(comm):
        uses, states = [], []
        for order in (1, -1, None):
            model = GPT(GPTConfig(5, num_layers=2, width=4)).initialize(0, np.float64)
            units = [part for block in model.h for part in (block.attn, block)][::order]
            strategy = make_strategy("fsdp", model, comm, units=units) if order else \
                make_strategy("ddp", model, comm)
            optimizer, rows = SGD(strategy.slabs, lr=0.1), np.array(strategy.rows(4), int)
            ids = np.arange(20).reshape(4, 5)[rows] % 5
            for _ in range(2):
                optimizer.zero_grad()
                strategy.forward_backward([Microbatch(ids, ids, rows)])
                strategy.step(optimizer)
            states.append(strategy.state_dict())
            uses.append([unit.name for unit in getattr(strategy, "last_uses", ())])
        assert uses[0] == uses[1] and uses[0].count("h.1.attn.c_attn.weight") > 1
        for name, values in states[0].items():
            assert np.array_equal(values, states[1][name]), name
            np.testing.assert_allclose(values, states[2][name], rtol=1e-10, atol=1e-13)
    world.run(body)


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
    for name in ONE_PROCESS:
        for state in Cluster(2).run(lambda comm, name=name: body(comm, name))[0]:
            for key, value in expected.items():
                assert np.array_equal(state[key], value), (name, key)
