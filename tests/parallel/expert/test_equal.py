"""Expert parallelism gives what one process gives: losses, gradients, norms, loads, drops."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.optim import clip
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.expert.distribute_experts import distribute_experts
from minipar.parallel.expert.router_bias import balance_routers, forget_loads
from minipar.parallel.registry import make_strategy
from minipar.testing import worlds
from tests.support.cases import ONE_PROCESS, assert_all_close
from tests.support.expert_runs import (
    MODELS,
    OPTIMIZERS,
    ROWS,
    STEPS,
    alone,
    check,
    gpt,
    on,
    take_steps,
)
from tests.support.sweeps import every

WAYS = ("ddp", "zero1", "fsdp")


@worlds(8, mpi=(2, 4))
@pytest.mark.parametrize("model", ["plain", "dropped"])
@pytest.mark.one_in(2)
def test_any_number_of_ranks_shares_the_experts(world, model):
    """ep = 1, 2, 4, 8, with the whole world as dp; gradients are not multiplied by ep."""
    for ep in (1, 2, 4, 8):
        if ep <= world.size:
            check(world, on({"dp": world.size, "ep": ep}), model)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name, ep", every(2, [
    (name, ep) for i, name in enumerate(WAYS) for ep in ((2, 4), (4, 2))[i % 2]]))
@pytest.mark.one_in(2)
def test_every_way_of_dp(world, name, ep):
    check(world, on({"dp": 4, "ep": ep}, name), "deepseek", "adamw", parts=3)


@worlds(4, mpi=())
@pytest.mark.parametrize("sizes, name", [({"dp": 4, "ep": 2}, "zero1"), ({"ep": 4}, "ddp")])
@pytest.mark.parametrize("model", [*MODELS])
@pytest.mark.one_in(2)
def test_every_model(world, model, sizes, name):
    check(world, on(sizes, name), model)


@worlds(8, mpi=())
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sizes, model, options", [
    ({"pp": 2, "tp": 2, "ep": 2}, "deepseek", {}),
    ({"tp": 2, "dp": 4, "ep": 2}, "deepseek", {"sequence_parallel": True}),
    ({"pp": 2, "dp": 4, "ep": 2}, "dropped", {}), ({"tp": 2, "dp": 4, "ep": 4}, "llama", {})])
@pytest.mark.one_in(2)
def test_beside_pp_and_tp(world, sizes, model, options, name):
    """Megatron 5047: losses of the router do not depend on tp; 5916: the norm counts all of tp."""
    check(world, on(sizes, name, **options), model, parts=2 if "pp" in sizes else 1)


@worlds(4, mpi=())
@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v", "interleaved", "gpipe"])
@pytest.mark.parametrize("name", ["zero1", "fsdp"])
@pytest.mark.one_in(2)
def test_every_kind_of_schedule(world, schedule, name):
    check(world, on({"pp": 2, "ep": 2}, name, schedule=schedule), "deep", parts=4)


@worlds(4, mpi=())
@pytest.mark.parametrize("name", ONE_PROCESS)
@pytest.mark.parametrize("model", ["deepseek", "dropped", "batch"])
def test_whole_experts_on_every_rank(world, name, model):
    check(world, lambda model, comm: make_strategy(name, model, comm), model, name=name)


@worlds(4, mpi=(4,))
def test_ranks_without_a_row_and_a_batch_with_one_target(world):
    """Two rows on four ranks: two ranks have no token, and most experts none."""
    for name in WAYS:
        check(world, on({"dp": 4, "ep": 2}, name), "dropped", rows=2)
    check(world, on({"ep": 4}), "deepseek", mask="one target")


@worlds(4, mpi=())
def test_all_tokens_go_to_one_expert(world):
    """Three of four ranks receive nothing, or have nothing to send."""
    def body(comm, make):
        model = MODELS["top 1"]().initialize(0, np.float64)
        for block in model.h:
            block.ln_2.bias.data[...] = 1
            block.mlp.router.weight.data[:, 5] += 3
        strategy = make(model, comm)
        found = take_steps(strategy, OPTIMIZERS["sgd"](strategy.slabs), steps=1)
        assert found["load 0 of h.0.mlp"].tolist() == [0, 0, 0, 0, 0, 96, 0, 0, 0]
        return found
    expected = Cluster(1).run(lambda comm: body(comm, on({"dp": 1})))[0][0]
    world.run(lambda comm: assert_all_close(body(comm, on({"ep": 4}, "zero1")), expected, 1e-10,
                                            1e-12))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("sizes", [{"ep": 4}, {"dp": 4, "ep": 2}, {"tp": 2, "ep": 2},
                                   {"pp": 2, "ep": 2}])
@pytest.mark.parametrize("name", WAYS)
def test_the_norm_counts_every_expert_once(world, sizes, name):
    """DeepSpeed 8475: not a mean over ranks that have different experts."""
    norm = MODELS["deepseek"]().num_parameters()**0.5

    def body(comm):
        strategy = on(sizes, name)(MODELS["deepseek"]().initialize(0, np.float64), comm)
        for slab in strategy.slabs:
            if name != "ddp":
                slab.has_grad = True
            slab.complete_grad()[...] = 1
        assert clip.grad_norm(strategy.slabs) == pytest.approx(norm, rel=1e-14)
    world.run(body)


@worlds(4, mpi=())
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.one_in(2)
def test_training_goes_on_with_another_ep(world, name):
    """Two steps with ep 4, then two with ep 2: the four steps of one process."""
    whole = alone("deepseek", "adamw", steps=2 * STEPS)

    def body(comm):
        strategy = on({"ep": 4}, name)(MODELS["deepseek"]().initialize(0, np.float64), comm)
        optimizer = OPTIMIZERS["adamw"](strategy.slabs)
        take_steps(strategy, optimizer)
        parameters, states = strategy.state_dict(), optimizer.state_dict()
        model = MODELS["deepseek"]().to_empty(np.float64)
        model.load_state_dict(parameters)
        strategy = on({"dp": 4, "ep": 2}, name)(model, comm)
        optimizer = OPTIMIZERS["adamw"](strategy.slabs)
        optimizer.load_state_dict(states, STEPS)
        found = take_steps(strategy, optimizer, first=STEPS)
        assert_all_close(found, {key: whole[key] for key in found}, 1e-10, 1e-12)
    world.run(body)


@worlds(4, mpi=())
def test_ranks_with_the_same_experts_stay_the_same_to_the_last_bit(world):
    def body(comm):
        strategy = on({"dp": 4, "ep": 2})(MODELS["deepseek"]().initialize(0, np.float64), comm)
        take_steps(strategy, OPTIMIZERS["adamw"](strategy.slabs))
        for slab in strategy.slabs:
            replicas = strategy.mesh["edp" if slab.ep else "dp"]
            assert not ranks_that_differ(replicas, slab.data.tobytes())
    world.run(body)


def test_experts_take_a_part_of_the_memory():
    def body(comm):
        strategy = on({"dp": 4, "ep": 2})(MODELS["plain"]().initialize(0), comm)
        return {slab.ep is not None: slab.data.size for slab in strategy.slabs}
    experts = sum(p.size for name, p in MODELS["plain"]().named_parameters() if "experts" in name)
    for sizes in Cluster(4).run(body)[0]:
        assert sizes[True] == experts // 2
        assert sizes[False] == MODELS["plain"]().num_parameters() - experts


def test_loads_are_those_of_all_tokens_and_a_skipped_step_counts_nothing():
    def body(comm):
        strategy = on({"pp": 2, "tp": 2, "ep": 2})(
            MODELS["dropped"]().initialize(0, np.float64), comm)
        optimizer = OPTIMIZERS["sgd"](strategy.slabs)
        found = take_steps(strategy, optimizer, steps=1, parts=2)
        forget_loads(strategy)
        after = balance_routers(strategy)
        return found, {name: (x.load.sum(), x.num_dropped) for name, x in after.items()}
    for found, after in Cluster(8).run(body)[0]:
        for name in ("h.0.mlp", "h.1.mlp"):
            *load, dropped = found[f"load 0 of {name}"].tolist()
            assert sum(load) == 2 * ROWS * 6 and dropped > 0
            assert after[name] == (0, 0)


def test_balance_routers_without_experts_does_nothing():
    def body(comm):
        model = GPT(GPTConfig(11, 6, 1, 2, 8)).initialize(0)
        return balance_routers(make_strategy("ddp", model, comm))
    assert Cluster(2).run(body)[0] == [{}, {}]


@pytest.mark.parametrize(("sizes", "model", "options", "sentence"), [
    ({"ep": 4}, "dense", {}, "this model has none: give the GPTConfig experts"),
    ({"ep": 4}, "two", {}, "h.0.mlp has 2 experts, which 4 ranks cannot share"),
    ({"dp": 4, "ep": 3}, "plain", {}, "ep=3 takes neighbours of dp=4, and does not divide it"),
    ({"ep": 4}, "plain", {"name": "dp"}, "dp is over all ranks, with no other axis"),
])
def test_what_does_not_go_together_is_refused(sizes, model, options, sentence):
    models = {**MODELS, "two": gpt(num_experts=2), "dense": lambda: GPT(GPTConfig(11, 6, 1, 2, 8))}
    with pytest.raises(ValueError, match=sentence):
        Cluster(4).run(lambda comm: on(sizes, **options)(models[model]().initialize(0), comm))


def test_experts_are_cut_once():
    def body(comm):
        model = distribute_experts(MODELS["plain"]().initialize(0), comm)
        with pytest.raises(ValueError, match="cut over ranks already: build a new model"):
            distribute_experts(model, comm)
    Cluster(2).run(body)


def test_the_mesh_names_the_ranks_with_the_same_and_with_other_experts():
    def body(comm):
        mesh = DeviceMesh(comm, pp=2, dp=4, tp=2, ep=2)
        assert "ep" in mesh and mesh.ep == 2 and "ep" not in mesh.shape
        assert mesh.coordinate("dp") == 2 * mesh.coordinate("edp") + mesh.coordinate("ep")
        return [[mesh[axes].world_rank_of(r) for r in range(mesh[axes].size)]
                for axes in ("dp", "ep", "edp", ("pp", "ep"))]
    for rank, found in enumerate(Cluster(16).run(body)[0]):
        pp, dp, tp = np.unravel_index(rank, (2, 4, 2))
        place = lambda pp, dp, tp: 8 * pp + 2 * dp + tp     # noqa: E731
        assert found[0] == [place(pp, i, tp) for i in range(4)]
        assert found[1] == [place(pp, dp // 2 * 2 + i, tp) for i in range(2)]
        assert found[2] == [place(pp, dp % 2 + 2 * i, tp) for i in range(2)]
        assert found[3] == [place(i, dp // 2 * 2 + j, tp) for i in range(2) for j in range(2)]
