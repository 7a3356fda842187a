"""The losses of distillation: values, gradients, temperature, rows that do not count."""

import numpy as np
import pytest

from minipar.autograd import Tensor, cross_entropy, gradcheck
from minipar.compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from minipar.compress.distillation.feature_loss import distance
from minipar.compress.distillation.feature_taps import run_with_taps
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.nn import GPT, GPTConfig

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.standard_normal((2, 3, 5)), 2 * RNG.standard_normal((2, 3, 5))
TARGETS = np.array([[2, -100, 0], [4, 4, -100]])


def leaf(array):
    return Tensor(array.copy(), requires_grad=True)


@pytest.mark.parametrize("kind", ["squared", "cosine"])
def test_distances(kind):
    counts = TARGETS != -100
    gradcheck(lambda x: distance(x, TEACHER, counts, 7, kind), leaf(LOGITS))
    x, y = LOGITS[counts], TEACHER[counts]
    expected = np.mean((x - y)**2) if kind == "squared" else np.mean(
        1 - np.sum(x * y, 1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1))
    spoilt, shown = LOGITS.copy(), TEACHER.copy()
    spoilt[~counts], shown[~counts] = np.nan, np.inf        # what does not count may be anything
    dirty = leaf(spoilt)
    loss = distance(dirty, shown, counts, counts.sum(), kind)
    loss.backward()
    assert np.isclose(loss.item(), expected, rtol=1e-14)
    assert np.isfinite(dirty.grad).all() and not dirty.grad[~counts].any()


def test_attention_is_matched_before_the_softmax():
    """More in all scores of a query: the same model, of which only this distance knows."""
    config = GPTConfig(11, 6, 2, 3, 12)
    student, teacher = (GPT(config).initialize(7, np.float64) for _ in range(2))
    for block in student.h:
        block.attn.c_attn.bias.data[12:24] += 0.5      # of the keys: q · 0.5 in all scores of q
    recipe = make_recipe(student, teacher, alpha=0.0, attention=1.0)
    model = Distillation(student, LocalTeacher(teacher, recipe), recipe)
    ids = RNG.integers(0, 11, (3, 6))
    plain = student.loss(ids, ids).item()
    assert np.isclose(plain, teacher.loss(ids, ids).item(), rtol=1e-12)
    own, taught = (run_with_taps(m, ids, (), [0, 1]).attention for m in (student, teacher))
    expected = sum(np.mean((a.data - b.data)**2) for a, b in zip(own, taught))
    assert expected > 1e-3 and np.isclose(model.loss(ids, ids).item() - plain, expected, rtol=1e-9)


def test_large_logits_stay_finite():
    for dtype in (np.float32, np.float64):
        z = leaf(1000 * LOGITS.astype(dtype))
        loss = soft_cross_entropy(z, 1000 * TEACHER, TARGETS, 1.0)
        loss.backward()
        assert np.isfinite(loss.item()) and np.isfinite(z.grad).all() and z.grad.dtype == dtype


def test_t_squared_keeps_the_gradient_s_size():
    """For logits small compared with T, (q - p) / T times T² is z - z' (of mean 0) over classes."""
    z, t = leaf(LOGITS[:, 0]), TEACHER[:, 0]
    soft_cross_entropy(z, t, np.zeros(2, int), 1e4).backward()
    centred = [x - x.mean(-1, keepdims=True) for x in (z.data, t)]
    np.testing.assert_allclose(z.grad, (centred[0] - centred[1]) / 5 / 2, atol=1e-4)


def test_a_likely_answer_alone_is_the_hard_target():
    sure = np.where(np.arange(5) == 3, 0.0, -1e4) + np.zeros((2, 5))
    hard = cross_entropy(Tensor(LOGITS[:, 0]), np.array([3, 3])).item()
    soft = soft_cross_entropy(Tensor(LOGITS[:, 0]), sure, np.zeros(2, int), 1.0).item()
    assert np.isclose(soft, hard, rtol=1e-14)


def test_what_cannot_be_is_said():
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="a temperature is a number > 0"):
            soft_cross_entropy(leaf(LOGITS), TEACHER, TARGETS, wrong)
    with pytest.raises(ValueError, match="the same classes"):
        soft_cross_entropy(leaf(LOGITS), TEACHER[..., :4], TARGETS, 1.0)
    with pytest.raises(ValueError, match="do not fit"):
        distance(leaf(LOGITS), TEACHER[:1], TARGETS != -100, 1)
