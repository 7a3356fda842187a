"""Attention and rotary positions where heads do not divide, or lie in their natural order."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.gspmd import P, distribute, plan, shard, sharded
from minipar.nn import Linear, Module

from .random_programs import check

HEADS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2)]
ANGLES = np.random.default_rng(0).random((1, 6, 1))
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def attend(qkv, heads, kv_heads):
    return (ag.fused_attention(qkv, heads, kv_heads) ** 2).sum()


def turn(qkv, heads, kv_heads):
    turned = ag.rotary(qkv, COS, SIN, heads + 2 * kv_heads)
    return (turned * np.arange(qkv.shape[-1] * 1.0)).sum()


@pytest.mark.parametrize("spec", [P(None, None, "tp"), P(None, "tp")], ids=str)
@pytest.mark.parametrize("program", [attend, turn])
@pytest.mark.parametrize("heads", HEADS)
def test_an_array_that_is_distributed(heads, program, spec):
    """Its columns lie as [q | k | v], so that a piece of them has no heads of all three."""
    x = np.random.default_rng(1).standard_normal((2, 6, 2 * (heads[0] + 2 * heads[1])))
    (right := program(one := Tensor(x, requires_grad=True), *heads)).backward()

    def on_rank(comm):
        mine = distribute(x, DeviceMesh(comm, tp=2), spec, requires_grad=True)
        loss = sharded(lambda qkv: program(qkv, *heads))(mine).redistribute(P())
        loss.backward()
        return float(loss.local.data), mine.grad
    losses, grads = zip(*Cluster(2).run(on_rank)[0])
    np.testing.assert_allclose(losses, right.data)
    np.testing.assert_allclose(np.concatenate(grads, 2 if len(spec.dims) == 3 else 1), one.grad)


BEFORE = {"linear": lambda x, w: ag.linear(x, w), "matmul": lambda x, w: x @ w,
          "scaled": lambda x, w: ag.linear(x, w) * np.linspace(0.5, 2, w.shape[1]),
          "tanh": lambda x, w: ag.tanh(ag.linear(x, w))}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("program", [attend, turn])
@pytest.mark.parametrize("heads", HEADS)
def test_a_program_cuts_what_attention_gets(heads, program, before):
    class Model(Module):
        def __init__(self):
            super().__init__()
            self.qkv = Linear(4, 2 * (heads[0] + 2 * heads[1]))

    def loss(model, x):
        return program(BEFORE[before](x, model.qkv.weight), *heads)
    x, model = np.random.default_rng(2).standard_normal((4, 6, 4)), Model()
    right = loss(model.initialize(0, np.float64), Tensor(x))
    right.backward()

    def on_rank(comm):
        step = shard(loss, Tensor(x), model=Model(), mesh=DeviceMesh(comm, dp=2, tp=2),
                     dtype=np.float64, annotations={"x0": P("dp"), "qkv.weight": P(None, "tp")})
        step.initialize(0, np.float64)
        result = step(x)
        result.backward()
        return float(result.data), step.whole("qkv.weight", step.parameters["qkv.weight"].grad)
    for value, grad in Cluster(4).run(on_rank)[0]:
        np.testing.assert_allclose(value, right.data)
        np.testing.assert_allclose(grad, model.qkv.weight.grad)


@pytest.mark.parametrize("bias", [P("a"), P("b"), P(("b", "a"))], ids=str)
@pytest.mark.parametrize("weight", [P("a"), P("b"), P("a", "b"), P(None, "a")], ids=str)
@pytest.mark.parametrize("x", [P("a"), P(None, None, "a")], ids=str)
@pytest.mark.parametrize("mesh", [{"a": 2, "b": 2}, {"a": 4, "b": 2}], ids=str)
def test_a_bias_in_its_natural_order(mesh, x, weight, bias):
    """An input lies as its user cuts it: pieces of its sections are nobody's."""
    specs = {"x0": x, "x1": weight, "x2": bias}
    numbers = np.random.default_rng(3)
    arrays = {f"x{i}": numbers.standard_normal(shape) for i, shape in enumerate(
        [(3, 3, 6), (6, 12), (12,)])}

    def program(x, w, b):
        return ag.fused_attention(ag.linear(x, w, b), 2, 2)
    planned = plan(program, *[Tensor(each, requires_grad=True) for each in arrays.values()],
                   mesh=mesh, annotations=specs)
    check(mesh, planned, program, arrays, specs)
