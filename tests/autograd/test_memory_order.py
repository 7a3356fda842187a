"""Operations give the same on arrays whose elements lie in another order in memory."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 5, 6, 8))
GAIN, W, B = rng.standard_normal(8), rng.standard_normal((8, 4)), rng.standard_normal(4)
ANGLES = rng.standard_normal((1, 6, 2))
CASES = {
    "gelu": (ag.gelu, X), "swiglu": (ag.swiglu, X, Y), "relu": (ag.relu, X), "tanh": (ag.tanh, X),
    "softmax": (ag.softmax, X), "log_softmax": (ag.log_softmax, X),
    "layer_norm": (ag.layer_norm, X, GAIN, GAIN + 1), "rms_norm": (ag.rms_norm, X, GAIN),
    "linear": (ag.linear, X, W, B), "matmul": (ag.matmul, X, W), "exp": (ag.exp, X),
    "divide": (lambda x, y: x / (y * y + 1.0), X, Y),
    "sum": (lambda x: x.sum(axis=1), X), "max": (lambda x: x.max(axis=1), X),
    "reshape": (lambda x: x.reshape(30, 8), X), "getitem": (lambda x: x[1:, 2], X),
    "concatenate": (lambda x, y: ag.concatenate([x, y], axis=1), X, Y),
    "cross_entropy": (lambda x: ag.cross_entropy(x, np.arange(30).reshape(5, 6) % 8), X),
    "fused_attention": (lambda x: ag.fused_attention(x, 2, 1), X),
    "rotary": (lambda x: ag.rotary(x, np.cos(ANGLES), np.sin(ANGLES), 2), X),
    "dropout": (lambda x: ag.dropout(x, X > 0, 0.5), X),
}


def last_axis_first(x):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0) if x.ndim > 1 else x


def axes_swapped(x):
    return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) if x.ndim > 1 else x


def results(function, arrays, order):
    leaves = [Tensor(order(x), requires_grad=True) for x in arrays]
    out = function(*leaves)
    out.backward(order(np.sin(np.arange(out.size, dtype=float)).reshape(out.shape)))
    return [out.data, *[leaf.grad for leaf in leaves]]


@pytest.mark.parametrize("order", [last_axis_first, axes_swapped])
@pytest.mark.parametrize("name", CASES)
def test_the_order_in_memory_changes_nothing(name, order):
    function, *arrays = CASES[name]
    for found, expected in zip(results(function, arrays, order),
                               results(function, arrays, np.array)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
