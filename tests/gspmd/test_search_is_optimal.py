"""No choice and no annotation of a small program is cheaper than what the search finds."""

import itertools

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.gspmd import P, plan
from minipar.gspmd.search import Machine, make_problem, program_seconds, search
from minipar.gspmd.search.choices import layouts
from minipar.nn import GPT, GPTConfig

from .test_search import loss

pytest.importorskip("scipy", reason="automatic sharding needs SciPy's solver")
MACHINES = [Machine(flops=1e10, latency=1e-6, default_bandwidth=1e9),
            Machine(flops=1e12, latency=1e-5, default_bandwidth=1e8),
            Machine(flops=1e8, latency=0, default_bandwidth=1e9)]
PROGRAMS = {            # a function and the shapes of its inputs
    "two layers": (lambda x, w, v: ag.linear(ag.relu(ag.linear(x, w)), v).sum(),
                   [(64, 32), (32, 128), (128, 32)]),
    "residual": (lambda x, w: (x + ag.linear(x, w)).sum(), [(64, 32), (32, 32)]),
    "one weight twice": (lambda x, w: ag.linear(ag.gelu(ag.linear(x, w)), w).sum(),
                         [(64, 32), (32, 32)]),
    "one input twice": (lambda x, w, v: (ag.linear(x, w) * ag.linear(x, v)).sum(),
                        [(64, 32), (32, 64), (32, 64)]),
    "bias": (lambda x, w, b: ag.linear(x, w, b).sum(), [(64, 32), (32, 64), (64,)]),
    "norm": (lambda x, g, w: ag.linear(ag.rms_norm(x, g), w).sum(), [(64, 32), (32,), (32, 64)]),
    "a number": (lambda x, w: (ag.softmax(ag.linear(x, w)) * x.sum()).sum(), [(64, 32), (32, 64)]),
}


def inputs_of(name):
    return [Tensor(np.zeros(shape, np.float32), requires_grad=True) for shape in PROGRAMS[name][1]]


@pytest.mark.parametrize("machine", MACHINES, ids=["even", "slow messages", "slow arithmetic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_annotation_is_cheaper(name, machine):
    """All layouts of all inputs; and the objective is the time of the program that is made."""
    mesh, inputs = {"a": 4}, inputs_of(name)
    problem = make_problem(PROGRAMS[name][0], *inputs, mesh=mesh, machine=machine)
    chosen = problem.solve()
    found = program_seconds(problem.plan(chosen).program, machine)
    assert problem.seconds(chosen) == pytest.approx(found)
    for dims in itertools.product(*[layouts(x, mesh) for x in problem.graph.inputs.values()]):
        specs = {f"x{i}": P(*[axes or None for axes in each]) for i, each in enumerate(dims)}
        other = plan(PROGRAMS[name][0], *inputs, mesh=mesh, annotations=specs)
        assert found <= program_seconds(other.program, machine) * (1 + 1e-9), specs


@pytest.mark.parametrize("name", ["one weight twice", "residual"])
def test_no_choice_is_cheaper(name):
    """All alternatives of all nodes."""
    problem = make_problem(PROGRAMS[name][0], *inputs_of(name), mesh={"a": 2}, machine=MACHINES[0])
    least = min(problem.seconds(chosen) for chosen in itertools.product(
        *[range(len(node.homes)) for node in problem.nodes]))
    assert problem.seconds(problem.solve()) == pytest.approx(least)


def test_it_finds_no_less_than_layouts_by_hand():
    """Weights that are gathered over dp and tp, and used apart along tp alone, have a price."""
    ids = np.zeros((16, 64), np.int64)
    options = {"model": GPT(GPTConfig(64, 64, 1, 8, 128)), "names": ["ids", "targets"],
               "mesh": {"dp": 2, "tp": 4}}
    problem = make_problem(loss, ids, ids, **options)
    chosen = problem.solve()
    found = program_seconds(problem.plan(chosen).program, problem.machine)
    assert found <= problem.seconds(chosen) * (1 + 1e-9)
    for first, second in (("dp", "tp"), ("tp", "dp")):
        by_hand = plan(loss, ids, ids, annotations={
            "ids": P(first), "h.*.attn.c_attn.weight": P(None, second),
            "h.*.mlp.c_fc.weight": P(None, second)}, **options)
        assert found <= program_seconds(by_hand.program, problem.machine)


def test_a_plan_beside_it_may_be_cheapest():
    """Of a transposed weight the search counts two sums of gradients, where one is made."""
    machine, mesh = MACHINES[0], {"a": 2, "b": 2}
    inputs = [Tensor(np.zeros(shape, np.float32), requires_grad=True)
              for shape in ((64, 32), (16, 64))]

    def program(w, x):
        return ag.softmax(ag.linear(ag.linear(x, w), w.T)).sum()

    by_hand = plan(program, *inputs, mesh=mesh, annotations={"x0": P(None, "b"), "x1": P("a")})
    alone, beside = (search(program, *inputs, mesh=mesh, machine=machine, beside=plans)
                     for plans in ([], [by_hand]))
    assert beside is by_hand
    assert program_seconds(by_hand.program, machine) < program_seconds(alone.program, machine)
