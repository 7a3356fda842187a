"""Automatic sharding: known layouts are found, are the cheapest, and compute the same."""

import sys

import numpy as np
import pytest

from minipar import Cluster, DeviceMesh
from minipar.gspmd import P, ShardedFunction, plan
from minipar.gspmd.search import (
    Machine,
    SearchError,
    make_problem,
    memory_bytes,
    program_seconds,
    search,
)
from minipar.gspmd.spec import show
from minipar.nn import GPT, MLP, GPTConfig
from tests.support.sweeps import every

from .chain import solve_chain

pytest.importorskip("scipy", reason="automatic sharding needs SciPy's solver")
MESH = {"dp": 2, "tp": 4}
LAPTOP = Machine(flops=1e10, latency=2e-5, default_bandwidth=5e9)


def loss(model, x, targets):
    return model.loss(x, targets, loss_divisor=float(targets.size))


def gpt(layers, batch, time, width, heads, vocabulary=512):
    ids = np.zeros((batch, time), np.int64)
    return (GPT(GPTConfig(vocabulary, time, layers, heads, width)), ids, ids.copy())


def found(planned, *names):
    return {name: show(planned.shardings.of(planned.graph.inputs[name])) for name in names}


def test_it_finds_megatrons_layout():
    """Batch over one axis, heads and the MLP's columns and rows over the other.

    Between the pairs of layers it cuts time over tp, too: sequence parallelism.
    """
    model, *inputs = gpt(1, 2, 4096, 4096, 32)
    machine = Machine(bandwidth={"tp": 2e11})                   # tp within a node
    planned = search(loss, *inputs, model=model, names=["ids", "targets"], mesh=MESH,
                     machine=machine)
    assert found(planned, *[f"h.0.{name}.weight" for name in (
        "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]) == {
        "h.0.attn.c_attn.weight": "(·, tp)", "h.0.attn.c_proj.weight": "(tp, ·)",
        "h.0.mlp.c_fc.weight": "(·, tp)", "h.0.mlp.c_proj.weight": "(tp, ·)"}
    values = {op.name: op.result for op in planned.graph.operations}
    assert show(planned.shardings.of(values["fusedattention"])) == "(dp, ·, tp)"
    assert show(planned.shardings.of(values["add:1"])) == "(dp, tp, ·)"
    for annotations in ({"ids": P("dp"), "h.0.attn.c_attn.weight": P(None, "tp"),
                         "h.0.mlp.c_fc.weight": P(None, "tp")}, {"ids": P("dp", "tp")}):
        by_hand = plan(loss, *inputs, model=model, names=["ids", "targets"], mesh=MESH,
                       annotations=annotations)
        assert program_seconds(planned.program, machine) < program_seconds(by_hand.program, machine)


def test_it_finds_data_parallelism_where_the_model_is_small():
    model, *inputs = gpt(1, 64, 32, 64, 4, vocabulary=64)
    planned = search(loss, *inputs, model=model, names=["ids", "targets"], mesh=MESH,
                     machine=LAPTOP)
    names = [name for name in planned.graph.inputs if name.startswith("h.")]
    # a weight may rest in pieces, at no cost; every product works on pieces of the batch
    products = [each for each in planned.program.instructions
                if each.kind == "compute" and each.operation.function.__name__ == "Linear"]
    assert names and products
    for each in products:
        assert set(each.cut) == {"a"} and set(each.cut["a"]) == {"dp", "tp"}


@pytest.mark.parametrize("sizes", [[8, 16, 8], [64, 256, 64, 8], [32, 8, 64, 8, 32]])
@pytest.mark.parametrize("machine", [Machine(), LAPTOP, Machine(flops=1e12, latency=0)])
@pytest.mark.one_in(2)
def test_a_chain_by_dynamic_programming_costs_the_same(sizes, machine):
    x, targets = np.zeros((16, sizes[0]), np.float32), np.zeros(16, np.int64)
    problem = make_problem(loss, x, targets, model=MLP(sizes), mesh=MESH, machine=machine)
    solver, exact = problem.solve(), solve_chain(problem)
    assert problem.seconds(solver) == pytest.approx(problem.seconds(exact), rel=1e-6)
    assert problem.seconds(exact) <= problem.seconds(solver) * (1 + 1e-12)


def test_a_graph_with_a_residual_is_no_chain():
    model, *inputs = gpt(1, 4, 8, 16, 4, vocabulary=16)
    problem = make_problem(loss, *inputs, model=model, mesh=MESH)
    with pytest.raises(SearchError, match="is no chain, search it with the integer program"):
        solve_chain(problem)


def test_less_memory_costs_more_time():
    model, *inputs = gpt(1, 8, 64, 256, 4)
    options = {"model": model, "names": ["ids", "targets"], "mesh": MESH, "machine": LAPTOP}
    problem, tight = (make_problem(loss, *inputs, **options) for _ in range(2))
    free = problem.solve()
    less = 0.6 * memory_bytes(problem.plan(free).program)
    chosen = tight.solve(memory=less)
    assert memory_bytes(tight.plan(chosen).program) <= less * 1.001
    assert problem.seconds(free) < tight.seconds(chosen)
    with pytest.raises(SearchError, match="no sharding fits 1e\\+03 bytes on a rank"):
        search(loss, *inputs, memory=1e3, **options)


MACHINES = [LAPTOP, Machine(flops=1e9, latency=0, default_bandwidth=1e9),
            Machine(flops=1e9, latency=0, default_bandwidth=1e12)]


@pytest.mark.parametrize("machine, memory", every(2, [      # 6.91e4 is the least there is
    (machine, memory) for memory in (None, 7e4) for machine in MACHINES]))
@pytest.mark.one_in(4)
def test_what_is_found_computes_the_same(machine, memory):
    config = GPTConfig(vocab_size=16, context=8, num_layers=2, num_heads=4, width=16)
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(0, 16, (2, 8, 8))
    alone = GPT(config).initialize(seed=1, dtype=np.float64)
    value = loss(alone, ids, targets)
    value.backward()
    grads = {name: parameter.grad for name, parameter in alone.named_parameters()}
    planned = search(loss, ids, targets, model=GPT(config), names=["ids", "targets"], mesh=MESH,
                     dtype=np.float64, machine=machine, memory=memory)

    def body(comm):
        mesh = DeviceMesh(comm, **MESH)
        step = ShardedFunction(planned, mesh, GPT(config)).initialize(seed=1, dtype=np.float64)
        result = step(ids, targets)
        result.backward()
        assert abs(result.item() - value.item()) < 1e-10
        for name, parameter in step.parameters.items():
            np.testing.assert_allclose(parameter.grad, parameter.local_part(grads[name]),
                                       atol=1e-10, rtol=0, err_msg=name)

    Cluster(8).run(body)


@pytest.mark.parametrize("layers", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_all_inner_blocks_are_alike(layers):
    model, *inputs = gpt(layers, 8, 512, 1024, 16)
    planned = search(loss, *inputs, model=model, names=["ids", "targets"], mesh=MESH)
    first = found(planned, "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight")
    assert "p" in "".join(first.values())               # cut along some axis
    for i in range(1, layers - 1):                      # and alike in all inner blocks
        assert list(found(planned, f"h.{i}.attn.c_attn.weight", f"h.{i}.mlp.c_fc.weight").values()
                    ) == list(first.values())


def test_without_scipy_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    x, targets = np.zeros((8, 8), np.float32), np.zeros(8, np.int64)
    problem = make_problem(loss, x, targets, model=MLP([8, 8]), mesh=MESH)
    with pytest.raises(ImportError, match="pip install 'minipar\\[search\\]'"):
        problem.solve()
