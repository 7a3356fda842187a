"""The losses of distillation: values, gradients, temperature, rows that do not count."""

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor, cross_entropy, gradcheck
from minipar.compress.matching import distance, layer_pairs
from minipar.compress.observe import attention_map
from minipar.compress.soft_targets import soft_cross_entropy

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.standard_normal((2, 3, 5)), 2 * RNG.standard_normal((2, 3, 5))
TARGETS = np.array([[2, -1, 0], [4, 4, -1]])


def leaf(array):
    return Tensor(array.copy(), requires_grad=True)


def test_the_value_and_the_gradient_are_those_of_the_definition():
    """Worked out by hand: p = (3/4, 1/4) and q = (1/2, 1/2) at T = 2."""
    z = leaf(np.zeros((1, 2)))
    loss = soft_cross_entropy(z, 2 * np.log([[3.0, 1.0]]), np.array([0]), 2.0)
    loss.backward()
    assert np.isclose(loss.item(), 4 * (0.75 * np.log(1.5) + 0.25 * np.log(0.5)), rtol=1e-14)
    np.testing.assert_allclose(z.grad, [[2 * (0.5 - 0.75), 2 * (0.5 - 0.25)]], rtol=1e-14)


@pytest.mark.parametrize("temperature, value, first", [     # of PyTorch 2.13
    (1.0, 0.10702093, (0.13414692, -0.05379650)), (4.0, 0.12638880, (0.12980324, -0.06090763))])
def test_numbers_of_another_implementation(temperature, value, first):
    z = leaf(np.array([[0.5, -1.0, 0.25], [1.0, 0.0, -0.5]]))
    loss = soft_cross_entropy(z, np.array([[0.0, -0.5, 1.0], [2.0, 0.0, 0.5]]), np.zeros(2, int),
                              temperature)
    loss.backward()
    assert np.isclose(loss.item(), value, rtol=1e-6)
    np.testing.assert_allclose(z.grad[:, 0], first, rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_gradients_by_finite_differences(temperature):
    gradcheck(lambda z: soft_cross_entropy(z, TEACHER, TARGETS, temperature, 7), leaf(LOGITS))
    for kind in ("squared", "cosine"):
        gradcheck(lambda x, kind=kind: distance(x, TEACHER, TARGETS != -1, 7, kind), leaf(LOGITS))
    gradcheck(lambda qkv: attention_map(qkv, 4, 2), leaf(RNG.standard_normal((2, 3, 16))))


def test_a_row_that_does_not_count_may_be_anything():
    spoilt, shown = LOGITS.copy(), TEACHER.copy()
    spoilt[TARGETS == -1], shown[TARGETS == -1] = np.nan, np.inf
    counts = TARGETS != -1
    for loss in (lambda z, t: soft_cross_entropy(z, t, TARGETS, 3.0),
                 lambda z, t: distance(z, t, counts, 4), lambda z, t: distance(z, t, counts, 4,
                                                                              "cosine")):
        clean, dirty = leaf(LOGITS), leaf(spoilt)
        a, b = loss(clean, TEACHER), loss(dirty, shown)
        a.backward()
        b.backward()
        assert a.item() == b.item() and np.array_equal(clean.grad, dirty.grad)
        assert not clean.grad[~counts].any()


def test_large_logits_stay_finite():
    for dtype in (np.float32, np.float64):
        z = leaf(1000 * LOGITS.astype(dtype))
        loss = soft_cross_entropy(z, 1000 * TEACHER, TARGETS, 1.0)
        loss.backward()
        assert np.isfinite(loss.item()) and np.isfinite(z.grad).all() and z.grad.dtype == dtype


def test_shares_of_a_batch_add_up():
    whole = soft_cross_entropy(Tensor(LOGITS), TEACHER, TARGETS, 2.0).item()
    parts = [soft_cross_entropy(Tensor(LOGITS[i:i + 1]), TEACHER[i:i + 1], TARGETS[i:i + 1], 2.0, 4)
             for i in range(2)]
    assert np.isclose(sum(part.item() for part in parts), whole, rtol=1e-14)
    empty = soft_cross_entropy(Tensor(LOGITS[:0]), TEACHER[:0], TARGETS[:0], 2.0)
    assert empty.item() == 0


def test_t_squared_keeps_the_gradient_s_size():
    """Where logits are small beside T: (q - p) / T times T² is z - z' (of mean 0) over classes."""
    z, t = leaf(LOGITS[:, 0]), TEACHER[:, 0]
    soft_cross_entropy(z, t, np.zeros(2, int), 1e4).backward()
    centred = [x - x.mean(-1, keepdims=True) for x in (z.data, t)]
    np.testing.assert_allclose(z.grad, (centred[0] - centred[1]) / 5 / 2, atol=1e-4)


def test_a_likely_answer_alone_is_the_hard_target():
    sure = np.where(np.arange(5) == 3, 0.0, -1e4) + np.zeros((2, 5))
    hard = cross_entropy(Tensor(LOGITS[:, 0]), np.array([3, 3])).item()
    soft = soft_cross_entropy(Tensor(LOGITS[:, 0]), sure, np.zeros(2, int), 1.0).item()
    assert np.isclose(soft, hard, rtol=1e-14)


def test_the_map_is_what_attention_uses():
    qkv = RNG.standard_normal((2, 7, 16))
    values = qkv[:, :, 12:].reshape(2, 7, 2, 1, 2).transpose(0, 2, 3, 1, 4)
    p = attention_map(Tensor(qkv), 4, 2).data
    mixed = p.reshape(2, 2, 2, 7, 7) @ values
    np.testing.assert_allclose(mixed.transpose(0, 3, 1, 2, 4).reshape(2, 7, 8),
                               ag.fused_attention(Tensor(qkv), 4, 2).data, atol=1e-14)


def test_layers_are_shared_out_evenly():
    assert layer_pairs(2, 4) == [(0, 1), (1, 3)]
    assert layer_pairs(3, 4) == [(0, 1), (1, 2), (2, 3)]
    assert layer_pairs(4, 4) == [(i, i) for i in range(4)]
    assert layer_pairs(3, 2) == [(0, 0), (1, 1), (2, 1)]
    assert layer_pairs(4, 12) == [(0, 2), (1, 5), (2, 8), (3, 11)]


def test_what_cannot_be_is_said():
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="a temperature is a number > 0"):
            soft_cross_entropy(leaf(LOGITS), TEACHER, TARGETS, wrong)
    with pytest.raises(ValueError, match="the same classes"):
        soft_cross_entropy(leaf(LOGITS), TEACHER[..., :4], TARGETS, 1.0)
    with pytest.raises(ValueError, match="do not fit"):
        distance(leaf(LOGITS), TEACHER[:1], TARGETS != -1, 1)
