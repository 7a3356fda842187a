"""The values of all operations, against the plainest code for it (gradcheck cannot see that)."""

import math
from itertools import product

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor

rng = np.random.default_rng(0)


def t(*shape):
    return Tensor(rng.standard_normal(shape), requires_grad=True)


def close(result, expected):
    assert result.shape == np.shape(expected)
    np.testing.assert_allclose(result.data, expected, rtol=1e-12, atol=1e-13)


def test_arithmetic_is_numpys():
    a, b, c = t(3, 1), t(4), rng.standard_normal((2, 1, 4))
    close(a + b, a.data + b.data)
    close(a - b, a.data - b.data)
    close(a * b, a.data * b.data)
    close(a / b, a.data / b.data)
    close(c - a, c - a.data)
    close(c / a, c / a.data)
    close(2 - a, 2 - a.data)
    close(-a, -a.data)
    close(a**3, a.data**3)
    close(a @ Tensor(b.data[None]), a.data @ b.data[None])
    close(np.ones((2, 3)) @ a, np.ones((2, 3)) @ a.data)


@pytest.mark.parametrize("name", ["exp", "tanh"])
def test_elementary_functions(name):
    x = t(2, 3)
    close(getattr(ag, name)(x), getattr(np, name)(x.data))


def test_functions_of_positive_numbers():
    x = Tensor(rng.random((2, 3)) + 0.1)
    close(ag.log(x), np.log(x.data))
    close(ag.sqrt(x), np.sqrt(x.data))


def test_relu_and_its_slope_at_zero():
    x = Tensor(np.array([-2.0, 0.0, 3.0]), requires_grad=True)
    y = ag.relu(x)
    close(y, [0, 0, 3])
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 1]


def test_gelu_is_the_tanh_form():
    x = np.array([-40.0, -3, -1, -0.1, 0, 0.1, 1, 3, 40])
    u = [math.sqrt(2 / math.pi) * (v + 0.044715 * v**3) for v in x]
    close(ag.gelu(Tensor(x)), [v * (1 + math.tanh(w)) / 2 for v, w in zip(x, u)])
    normal = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x]
    assert np.max(np.abs(ag.gelu(Tensor(x)).data - normal)) < 1e-3      # close to x Φ(x)


def test_where_and_dropout():
    a, b, m = t(2, 3), t(3), np.array([True, False, True])
    close(ag.where(m, a, b), np.where(m, a.data, b.data))
    close(ag.dropout(a, m, 0.75), a.data * m * 4)
    with pytest.raises(ValueError, match=r"rate 1.0 is not in \[0, 1\)"):
        ag.dropout(a, m, 1.0)


def test_maxima_share_the_gradient_evenly():
    x = Tensor(np.array([[5.0, 5, 5], [1, 7, 7]]), requires_grad=True)
    ag.max(x, axis=1).backward(np.array([3.0, 10]))
    close(Tensor(x.grad), [[1, 1, 1], [0, 5, 5]])


def test_reductions_and_shapes():
    x = t(2, 3, 4)
    for axis, keepdims in product([None, 0, -1, (0, 2)], [False, True]):
        close(x.sum(axis, keepdims), x.data.sum(axis, keepdims=keepdims))
        close(x.mean(axis, keepdims), x.data.mean(axis, keepdims=keepdims))
        close(x.max(axis, keepdims), x.data.max(axis, keepdims=keepdims))
    close(x.transpose(2, 0, 1), x.data.transpose(2, 0, 1))
    close(x.T, x.data.T)
    close(x.reshape(4, -1), x.data.reshape(4, -1))
    close(ag.broadcast_to(x, (5, 2, 3, 4)), np.broadcast_to(x.data, (5, 2, 3, 4)))
    close(x[..., ::-2], x.data[..., ::-2])
    close(ag.concatenate([x, x[:, :1]], axis=1), np.concatenate([x.data, x.data[:, :1]], axis=1))
    for piece, expected in zip(x.split(2, axis=2), np.split(x.data, 2, axis=2), strict=True):
        close(piece, expected)
    assert [row.shape for row in x] == [(3, 4)] * 2         # iteration ends


def test_linear_and_embedding():
    x, w, b, table = t(2, 3, 4), t(4, 5), t(5), t(6, 3)
    close(ag.linear(x, w, b), x.data @ w.data + b.data)
    close(ag.linear(x, w), x.data @ w.data)
    ids = np.array([[5, 0], [0, 0]])
    close(ag.embedding(table, ids), table.data[ids])


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_softmax(scale):
    x = rng.standard_normal((4, 5)) * scale
    p = np.array([[1 / sum(math.exp(min(b - a, 700)) for b in row) for a in row] for row in x])
    close(ag.softmax(Tensor(x)), p)
    exact = [[a - max(row) - math.log(sum(math.exp(b - max(row)) for b in row)) for a in row]
             for row in x]
    close(ag.log_softmax(Tensor(x)), exact)


def test_layer_norm():
    x, gain, bias = t(2, 3, 7), t(7), t(7)
    y = ag.layer_norm(x, gain, bias, 1e-3)
    mean, var = x.data.mean(-1, keepdims=True), x.data.var(-1, keepdims=True)
    close(y, (x.data - mean) / np.sqrt(var + 1e-3) * gain.data + bias.data)


def test_cross_entropy_skips_ignored_rows_and_divides_by_what_it_is_told():
    logits, targets = t(2, 3, 4), np.array([[0, -100, 3], [-100, 2, -100]])
    rows = [(logits.data[i], targets[i]) for i in np.ndindex(targets.shape) if targets[i] >= 0]
    total = sum(math.log(sum(np.exp(row))) - row[target] for row, target in rows)
    assert ag.count_targets(targets) == len(rows) == 3
    close(ag.cross_entropy(logits, targets), total / 3)
    close(ag.cross_entropy(logits, targets, loss_divisor=12.0), total / 12)
    close(ag.cross_entropy(logits, np.where(targets < 0, 99, targets), ignore_index=99), total / 3)


def test_cross_entropy_with_nothing_to_learn_is_zero():
    for logits, targets in ((t(2, 4), np.full(2, -100)), (t(0, 4), np.empty(0, int))):
        loss = ag.cross_entropy(logits, targets)
        loss.backward()
        assert loss.item() == 0 and not logits.grad.any()


def test_cross_entropy_of_huge_logits():
    logits = Tensor(np.array([[1000.0, 0, -1000], [0, 2000, 0]]), requires_grad=True)
    loss = ag.cross_entropy(logits, np.array([1, 1]))
    loss.backward()
    assert loss.item() == 500
    assert logits.grad.tolist() == [[0.5, -0.5, 0], [0, 0, 0]]
