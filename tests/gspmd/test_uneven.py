"""Dimensions that do not divide: every operation computes what one device does, forward and back.

The rows are such that a row of zeros, a natural padding, would give NaN or infinity; and errstate
makes the ranks raise at the first.
"""

import itertools

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import Cluster, DeviceMesh
from minipar.autograd import Tensor
from minipar.autograd.ops.rounding import round_to
from minipar.gspmd import P, constrain, distribute, shard, sharded
from minipar.gspmd.rules import RULES
from minipar.gspmd.shard_map import ShardMap
from minipar.number_formats import FLOAT16
from minipar.testing.worlds import worlds

rng = np.random.default_rng(3)
ROWS = 9                                    # over 4 ranks 3, 3, 3, 0; 4 columns over 3: 2, 2, 0
ARRAYS = {"x": rng.standard_normal((ROWS, 4)) + np.arange(1.0, 5.0) * 4,
          "y": rng.random((ROWS, 4)) + 1.0,
          "w": rng.standard_normal((4, 4)), "gain": rng.standard_normal(4)}
SCALES = np.linspace(0.5, 1.5, ROWS)[:, None]           # arrays that the program holds itself
EARLIER = np.tri(ROWS, dtype=bool)
IDS = np.arange(ROWS) * 2 % 4
ANGLES = rng.random((ROWS, 1, 1))


PROGRAMS = {
    "Add": lambda x, y, w, gain: x + SCALES + gain,
    "Subtract": lambda x, y, w, gain: SCALES - x,
    "Multiply": lambda x, y, w, gain: x * y * SCALES * gain,
    "Divide": lambda x, y, w, gain: gain / y + x / y,
    "Power": lambda x, y, w, gain: (y @ ag.exp(w)) ** -1.5 * gain,
    "Exp": lambda x, y, w, gain: ag.exp(1000.0 * (1.0 - y)) * gain,        # e¹⁰⁰⁰ of padding
    "Log": lambda x, y, w, gain: ag.log(y) * gain,
    "Sqrt": lambda x, y, w, gain: gain / ag.sqrt(y),
    "Where": lambda x, y, w, gain: ag.where(EARLIER, y @ y.T, -9.0) @ x,
    "AsType": lambda x, y, w, gain: ag.log(y.astype(np.float32)).astype(np.float64) * gain,
    "Relu": lambda x, y, w, gain: ag.relu(ag.log(y)) * gain,
    "Tanh": lambda x, y, w, gain: ag.tanh(ag.log(y)) * gain,
    "Gelu": lambda x, y, w, gain: ag.gelu(ag.log(y)) * gain,
    "SwiGLU": lambda x, y, w, gain: ag.swiglu(ag.log(y), x) * gain,
    "Dropout": lambda x, y, w, gain: ag.dropout(ag.log(y), np.ones(4) < SCALES, 0.5) * gain,
    "Round": lambda x, y, w, gain: round_to(ag.log(y), FLOAT16, FLOAT16) * gain,
    "BroadcastTo": lambda x, y, w, gain: ag.log(ag.broadcast_to(y.sum(1, True), (ROWS, 4))) * gain,
    "Constrain": lambda x, y, w, gain: constrain(ag.log(y), P(None, "dp")) * gain,
    "Softmax": lambda x, y, w, gain: ag.softmax(ag.where(EARLIER, y @ y.T, -np.inf)) @ x * gain,
    "LogSoftmax": lambda x, y, w, gain: ag.log_softmax(ag.log(y)) * gain,
    "LayerNorm": lambda x, y, w, gain: ag.layer_norm(x, gain, gain, 0.0),
    "RMSNorm": lambda x, y, w, gain: ag.rms_norm(x, gain, 0.0),
    "Linear": lambda x, y, w, gain: ag.linear(ag.log(y), w, gain),
    "MatMul": lambda x, y, w, gain: (1.0 / y).T @ x * gain,
    "Sum": lambda x, y, w, gain: ag.log(y).sum(axis=0) * gain,
    "Max": lambda x, y, w, gain: (-1.0 / y).max(axis=0) * gain,
    "Embedding": lambda x, y, w, gain: ag.embedding(1.0 / y, IDS) * gain,
    "CrossEntropy": lambda x, y, w, gain: ag.cross_entropy(ag.log(y) * gain, IDS),
    "Reshape": lambda x, y, w, gain: ag.log(y.reshape(ROWS, 2, 2)) * gain.reshape(2, 2),
    "Transpose": lambda x, y, w, gain: ag.log(y).T * gain.reshape(4, 1),
    "GetItem": lambda x, y, w, gain: ag.log(y)[2:7] * gain,
    "Concatenate": lambda x, y, w, gain: ag.concatenate([ag.log(y), x]) * gain,
    "FusedAttention": lambda x, y, w, gain: ag.fused_attention(
        ag.linear(1.0 / y, ag.concatenate([w, w, w], 1)).reshape(ROWS, 1, 12), 2) * gain,
    "Rotary": lambda x, y, w, gain: ag.rotary((1.0 / y).reshape(ROWS, 1, 4), np.cos(ANGLES),
                                              np.sin(ANGLES), 2) * gain,
}
SPECS = {"rows": {"x": P("dp"), "y": P("dp"), "w": P(), "gain": P()},
         "columns": {"x": P(None, "dp"), "y": P(), "w": P("dp"), "gain": P("dp")}}


def loss_of(name):
    def loss(*inputs):
        result = PROGRAMS[name](*inputs)
        return (result * result).sum() * 0.1 + ag.tanh(inputs[2]).sum() + sum(
            x.sum() for x in (inputs[0], inputs[1], inputs[3]))
    return loss


def test_every_operation_with_a_rule_is_here():
    names = {function.__name__ for function in RULES} - {ShardMap.__name__}
    assert set(PROGRAMS) == names, "write a program that calls each, in PROGRAMS here"


def alone(name):
    leaves = [Tensor(array, requires_grad=True) for array in ARRAYS.values()]
    loss = loss_of(name)(*leaves)
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


def check(comm, name, specs):
    """Loss and gradients of the eager form and of the whole program are those of one device."""
    mesh = DeviceMesh(comm, dp=comm.size)
    value, grads = alone(name)
    with np.errstate(all="raise", under="ignore"):
        leaves = [distribute(array, mesh, specs[each], requires_grad=True)
                  for each, array in ARRAYS.items()]
        eager = sharded(loss_of(name))(*leaves).redistribute(P())
        eager.backward()
        step = shard(loss_of(name), *[Tensor(a, requires_grad=True) for a in ARRAYS.values()],
                     mesh=mesh, annotations=specs, names=list(ARRAYS))
        pieces = {each: Tensor(leaf.local.data.copy(), requires_grad=True) for each, leaf in
                  zip(ARRAYS, leaves)}
        whole = step.run(pieces)
        whole.backward()
    np.testing.assert_allclose([eager.item(), whole.item()], value, rtol=1e-6)
    for each, leaf, grad in zip(ARRAYS, leaves, grads):
        wanted = distribute(grad, mesh, specs[each]).local.data
        for own in (leaf.grad, pieces[each].grad):
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-9, err_msg=each)


@pytest.mark.parametrize(("layout", "num_ranks"), [("rows", 4), ("columns", 3)])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(3)
def test_an_operation(name, layout, num_ranks):
    Cluster(num_ranks).run(lambda comm: check(comm, name, SPECS[layout]))


@worlds(4)
def test_in_both_worlds(world):
    for name in ("Softmax", "LayerNorm", "Max", "Embedding", "GetItem"):
        world.run(lambda comm, name=name: check(comm, name, SPECS["rows"]))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
@pytest.mark.one_in(2)
def test_a_length_over_two_axes_in_any_order(length):
    specs = [P(("a", "b")), P(("b", "a")), P("a"), P("b"), P()]
    numbers = np.arange(1.0, length + 1)

    def body(comm):
        mesh = DeviceMesh(comm, order=("a", "b"), a=2, b=2)
        for spec, after in itertools.product(specs, specs):
            x = distribute(numbers, mesh, spec, requires_grad=True)
            y = x.redistribute(after)
            np.testing.assert_array_equal(y.full_tensor().data, numbers)
            (y * y).sum().redistribute(P()).backward()
            np.testing.assert_array_equal(x.grad, 2 * x.local.data)

    Cluster(4).run(body)


def test_rotated_pieces_of_one_element():
    numbers, weights = np.arange(1.0, 5.0), np.arange(8.0)

    def loss(x):
        turned = [ag.concatenate([x[n:], x[:n]]) for n in (3, 1)]
        return (ag.concatenate(turned) ** 2 * weights).sum()

    alone = Tensor(numbers, requires_grad=True)
    loss(alone).backward()

    def body(comm):
        x = distribute(numbers, DeviceMesh(comm, dp=4), P("dp"), requires_grad=True)
        sharded(loss)(x).redistribute(P()).backward()
        np.testing.assert_allclose(x.grad, alone.grad[comm.rank:comm.rank + 1])

    Cluster(4).run(body)
