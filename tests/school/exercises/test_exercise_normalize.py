"""Exercises softmax_backward, layer_norm_backward and cross_entropy."""

import numpy as np
import pytest

from minipar.autograd import Tensor, cross_entropy, gradcheck, layer_norm, softmax


def tensor(*shape, seed=0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return Tensor(values, requires_grad=True)


def direction_is_only_read(out):
    g = np.random.default_rng(5).standard_normal(out.shape)
    before = g.copy()
    out.backward(g)
    assert np.array_equal(g, before), "the gradient is only read: others may hold the same array"


@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 3, 4)])
def test_softmax_backward_by_differences(shape):
    gradcheck(softmax, tensor(*shape))


def test_softmax_backward_of_a_constant_is_zero():
    """Every row of y sums to 1, whatever x is: Σ y has the gradient 0."""
    x = tensor(3, 5)
    softmax(x).sum().backward()
    assert np.max(np.abs(x.grad)) < 1e-15, f"d(Σ y)/dx must be 0, not {x.grad[0]}"


def test_softmax_backward_only_reads_g():
    direction_is_only_read(softmax(tensor(3, 5)))


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4)])
def test_layer_norm_backward_by_differences(shape):
    gradcheck(layer_norm, tensor(*shape), tensor(shape[-1], seed=1), tensor(shape[-1], seed=2))


def test_layer_norm_backward_of_shift_and_scale():
    """y does not change when a row is shifted or scaled, so dx is at right angles to both."""
    x = tensor(4, 6)
    gain, bias = tensor(6, seed=1), tensor(6, seed=2)
    layer_norm(x, gain, bias, epsilon=0.0).backward(tensor(4, 6, seed=3).data)
    shifted = np.abs(np.sum(x.grad, axis=-1)).max()
    scaled = np.abs(np.sum(x.grad * (x.data - x.data.mean(-1, keepdims=True)), axis=-1)).max()
    assert shifted < 1e-13, f"Σ dx of a row must be 0, not {shifted:.2g}"
    assert scaled < 1e-13, f"Σ dx (x - mean) of a row must be 0, not {scaled:.2g}"


def test_layer_norm_backward_only_reads_g():
    direction_is_only_read(layer_norm(tensor(3, 4), tensor(4), tensor(4, seed=1)))


def by_hand(logits, targets, loss_divisor, ignore_index=-100):
    """The loss in the plainest form: Σ -log softmax(row)[target] / loss_divisor."""
    total = 0.0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)):
        if target != ignore_index:
            total += np.log(np.sum(np.exp(row - row.max()))) - (row[target] - row.max())
    return total / loss_divisor


TARGETS = np.array([[1, -100, 4], [0, 2, -100]])


def test_cross_entropy_is_the_negative_log_likelihood():
    logits = tensor(2, 3, 5)
    loss = cross_entropy(logits, TARGETS).data
    expected = by_hand(logits.data, TARGETS, 4)
    assert abs(loss - expected) < 1e-13, f"the loss is {loss}, by hand it is {expected}"


def test_cross_entropy_divides_by_num_targets():
    logits = tensor(2, 3, 5)
    loss, expected = cross_entropy(logits, TARGETS, 10).data, by_hand(logits.data, TARGETS, 10)
    assert abs(loss - expected) < 1e-13, f"with loss_divisor=10 the loss is {loss}, not {expected}"


@pytest.mark.parametrize("loss_divisor", [None, 10])
def test_cross_entropy_gradient_by_differences(loss_divisor):
    gradcheck(lambda x: cross_entropy(x, TARGETS, loss_divisor), tensor(2, 3, 5))


def test_cross_entropy_gives_ignored_rows_no_gradient():
    logits = tensor(2, 3, 5)
    cross_entropy(logits, TARGETS).backward()
    ignored = np.abs(logits.grad[TARGETS == -100]).max()
    assert ignored == 0, f"a row that does not count has the gradient {ignored:.3g}, not 0"


def test_cross_entropy_of_large_logits():
    """exp(1000) is infinite; the loss and its gradient are not."""
    logits = Tensor(np.array([[1000.0, 0.0, -1000.0], [0.0, -1000.0, 5.0]]), requires_grad=True)
    with np.errstate(all="ignore"):
        loss = cross_entropy(logits, np.array([1, 0]))
        loss.backward()
    expected = (1000 + 5 + np.log1p(np.exp(-5.0))) / 2
    assert abs(loss.data - expected) < 1e-9, f"the loss is {loss.data}, it should be {expected}"
    assert np.all(np.isfinite(logits.grad)), f"the gradient is {logits.grad}"


def test_cross_entropy_leaves_the_logits_alone():
    logits = tensor(2, 3, 5)
    before = logits.data.copy()
    cross_entropy(logits, TARGETS).backward()
    assert np.array_equal(logits.data, before), "the logits are only read"
