"""Exercises of distillation: soft_targets, layer_pairs, attention_scores and teacher_messages."""

from math import prod

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor, gradcheck
from minipar.comm.collectives import chunk_bounds
from minipar.compress.distillation.feature_loss import layer_pairs
from minipar.compress.distillation.feature_taps import attention_scores
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.compress.distillation.teacher_messages import TeacherOutput, bytes_between, messages

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.standard_normal((2, 3, 5)), 2 * RNG.standard_normal((2, 3, 5))
TARGETS = np.array([[2, -100, 0], [4, 4, -100]])


def leaf(array):
    return Tensor(array.copy(), requires_grad=True)


def test_soft_targets_by_hand():
    """p = (3/4, 1/4) and q = (1/2, 1/2) at T = 2."""
    z = leaf(np.zeros((1, 2)))
    loss = soft_cross_entropy(z, 2 * np.log([[3.0, 1.0]]), np.array([0]), 2.0)
    loss.backward()
    expected = 4 * (0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert np.isclose(loss.item(), expected, rtol=1e-14), "the loss is T² Σ p ln(p / q)"
    np.testing.assert_allclose(z.grad, [[2 * (0.5 - 0.75), 2 * (0.5 - 0.25)]], rtol=1e-14,
                               err_msg="the gradient is T (q - p)")


@pytest.mark.parametrize("temperature, value, first", [     # of PyTorch 2.13
    (1.0, 0.10702093, (0.13414692, -0.05379650)), (4.0, 0.12638880, (0.12980324, -0.06090763))])
def test_soft_targets_of_another_implementation(temperature, value, first):
    z = leaf(np.array([[0.5, -1.0, 0.25], [1.0, 0.0, -0.5]]))
    loss = soft_cross_entropy(z, np.array([[0.0, -0.5, 1.0], [2.0, 0.0, 0.5]]), np.zeros(2, int),
                              temperature)
    loss.backward()
    assert np.isclose(loss.item(), value, rtol=1e-6)
    np.testing.assert_allclose(z.grad[:, 0], first, rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_soft_targets_by_finite_differences(temperature):
    gradcheck(lambda z: soft_cross_entropy(z, TEACHER, TARGETS, temperature, 7), leaf(LOGITS))


def test_soft_targets_leave_out_rows_that_do_not_count():
    spoilt, shown = LOGITS.copy(), TEACHER.copy()
    spoilt[TARGETS == -100], shown[TARGETS == -100] = np.nan, np.inf
    clean, dirty = leaf(LOGITS), leaf(spoilt)
    a = soft_cross_entropy(clean, TEACHER, TARGETS, 3.0)
    b = soft_cross_entropy(dirty, shown, TARGETS, 3.0)
    a.backward()
    b.backward()
    assert a.item() == b.item() and np.array_equal(clean.grad, dirty.grad)
    assert not clean.grad[TARGETS == -100].any(), "a row whose target is ignored has no gradient"


def test_soft_targets_of_shares_of_a_batch_add_up():
    whole = soft_cross_entropy(Tensor(LOGITS), TEACHER, TARGETS, 2.0).item()
    parts = [soft_cross_entropy(Tensor(LOGITS[i:i + 1]), TEACHER[i:i + 1], TARGETS[i:i + 1], 2.0, 4)
             for i in range(2)]
    assert np.isclose(sum(part.item() for part in parts), whole, rtol=1e-14)
    assert soft_cross_entropy(Tensor(LOGITS[:0]), TEACHER[:0], TARGETS[:0], 2.0).item() == 0


def test_layers_are_shared_out_evenly():
    assert layer_pairs(2, 4) == [(0, 1), (1, 3)]
    assert layer_pairs(4, 4) == [(i, i) for i in range(4)]
    assert layer_pairs(4, 12) == [(0, 2), (1, 5), (2, 8), (3, 11)]


def test_layers_where_one_number_does_not_divide_the_other():
    assert layer_pairs(3, 4) == [(0, 1), (1, 2), (2, 3)]
    assert layer_pairs(3, 2) == [(0, 0), (1, 1), (2, 1)], "a student may have more layers"


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (2, 1)])
def test_the_scores_are_those_that_attention_uses(heads, kv_heads):
    """Softmax of them, times the values, is what fused attention gives."""
    d, t, group = 2, 7, heads // kv_heads
    qkv = RNG.standard_normal((2, t, (heads + 2 * kv_heads) * d))
    scores = attention_scores(Tensor(qkv), heads, kv_heads).data
    assert scores.shape == (2, heads, t, t)
    p = np.exp(scores) * np.tril(np.ones((t, t)))
    p /= p.sum(-1, keepdims=True)
    values = qkv[:, :, -kv_heads * d:].reshape(2, t, kv_heads, d).transpose(0, 2, 1, 3)
    mixed = p @ np.repeat(values, group, axis=1)
    np.testing.assert_allclose(mixed.transpose(0, 2, 1, 3).reshape(2, t, heads * d),
                               ag.fused_attention(Tensor(qkv), heads, kv_heads).data, atol=1e-14)
    assert not np.triu(scores, 1).any(), "a query sees no later key: these scores are 0"


def test_scores_are_taken_before_the_softmax():
    """q = 1 and k = 1, 2, 3: TinyBERT matches 1, 2 and 3, which no softmax has squeezed."""
    qkv = np.stack([np.ones(3), np.arange(1.0, 4), np.zeros(3)], axis=-1)[None]
    scores = attention_scores(Tensor(qkv), 1, 1).data[0, 0]
    np.testing.assert_allclose(scores, [[1, 0, 0], [1, 2, 0], [1, 2, 3]], rtol=1e-14)


def test_the_scores_have_gradients():
    gradcheck(lambda qkv: attention_scores(qkv, 4, 2), leaf(RNG.standard_normal((2, 3, 16))))


OUTPUTS = [TeacherOutput(5, (6, 11)), TeacherOutput(2, (6, 12)), TeacherOutput(2, (4, 6, 6), True)]


def test_messages_hold_each_number_once():
    """A student's messages together make up its rows, without overlap."""
    arrays = [np.arange(5 * 66).reshape(5, 6, 11), np.arange(5 * 72).reshape(5, 6, 12),
              np.arange(5 * 144).reshape(5, 4, 6, 6)]
    shares = {0: (0, 2), 4: (2, 5)}
    found = messages(OUTPUTS, [[1, 2, 3], [3, 0], [2, 5]], shares)
    for i, array in enumerate(arrays):
        for rank, rows in shares.items():
            parts = [m.take(array) for m in found if m.output == i and m.dest == rank]
            axis = OUTPUTS[i].axis
            assert np.array_equal(np.concatenate(parts, axis), array[slice(*rows)]), \
                f"what rank {rank} is told of output {i}"
    assert all(m.shape == m.take(arrays[m.output]).shape for m in found)


def test_messages_of_a_piece_are_cut_by_rows_only():
    pieces = [np.zeros((5, 6, stop - start)) for start, stop in chunk_bounds(11, 3)]
    for m in messages(OUTPUTS[:1], [[7, 8, 9]], {0: (0, 2), 1: (2, 5)}):
        assert m.take(pieces[m.source - 7]).shape == m.shape


def test_messages_have_the_bytes_of_the_formula():
    """b t V + b t d a layer + b h t t a map, once; where all are both, what stays is not sent."""
    whole = 8 * 5 * sum(prod(output.shape) for output in OUTPUTS)
    apart = messages(OUTPUTS, [[2, 3]] * 3, {0: (0, 3), 1: (3, 5)})
    assert bytes_between(apart, 8) == whole and len(apart) == 3 * 2 * 2
    stages = messages(OUTPUTS, [[3], [2], [2]], {0: (0, 3), 1: (3, 5)})
    assert bytes_between(stages, 8) == whole and len(stages) == 3 * 2
    same = messages(OUTPUTS[1:2], [[0, 1, 2, 3]], {r: (2 * r, 2 * r + 2) for r in range(4)})
    assert bytes_between(same, 8) == 8 * 8 * 72 * 3 // 4
