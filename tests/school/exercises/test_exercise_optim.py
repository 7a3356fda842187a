"""Exercises adam_update, clip_grad_norm and warmup_cosine."""

import math

import numpy as np
import pytest

from minipar.nn import MLP
from minipar.optim import Adam, AdamW, clip_grad_norm, warmup_cosine


def model_with_gradients(seed, sizes=(3, 4, 2)):
    model = MLP(sizes).initialize(seed, dtype=np.float64)
    fill_gradients(model, seed)
    return model


def fill_gradients(model, seed, scale=1.0):
    """As if a backward pass had filled the slab."""
    for slab in model.slabs:
        gradient = slab.complete_grad()
        gradient[...] = scale * np.random.default_rng(seed).standard_normal(gradient.shape)


def textbook(p, gradients, lr, betas, epsilon, decay, decoupled):
    """Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2."""
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, start=1):
        p = p - lr * decay * p if decoupled else p
        g = g if decoupled else g + decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        p = p - lr * (m / (1 - betas[0]**t)) / (np.sqrt(v / (1 - betas[1]**t)) + epsilon)
    return p


@pytest.mark.parametrize("optimizer, decay, decoupled", [(Adam, 0.0, False), (Adam, 0.1, False),
                                                         (AdamW, 0.1, True), (AdamW, 0.0, True)])
def test_adam_update_is_the_textbook(optimizer, decay, decoupled):
    model = model_with_gradients(0)
    (slab,) = model.slabs
    # An epsilon as large as the gradients: where it stands matters.
    steps = optimizer(model.slabs, lr=0.05, betas=(0.8, 0.9), epsilon=0.5, weight_decay=decay)
    start, gradients = slab.data.copy(), []
    for step in range(4):
        fill_gradients(model, step)
        gradients.append(slab.grad.copy())
        steps.step()
    expected = textbook(start, gradients, 0.05, (0.8, 0.9), 0.5, decay, decoupled)
    error = np.max(np.abs(slab.data - expected))
    assert error < 1e-12, (f"after 4 steps of {optimizer.__name__} with weight_decay={decay} the "
                           f"parameters are off by {error:.2g}")


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_adam_update_only_reads_the_gradient(optimizer):
    model = model_with_gradients(1)
    (slab,) = model.slabs
    before = slab.grad.copy()
    optimizer(model.slabs, lr=0.05, weight_decay=0.1).step()
    assert np.array_equal(slab.grad, before), "compute_step() changed g, which it may only read"


def norm_of(slabs):
    return math.sqrt(sum(float(np.sum(slab.grad**2)) for slab in slabs))


def two_slabs():
    return model_with_gradients(0).slabs + model_with_gradients(1, (5, 5)).slabs


def test_clip_grad_norm_is_global():
    slabs = two_slabs()
    before = [slab.grad.copy() for slab in slabs]
    clip_grad_norm(slabs, 1.0)
    norm = norm_of(slabs)
    assert abs(norm - 1) < 1e-5, f"the global norm is {norm} after clipping to 1"
    factors = [float(slab.grad[0] / grad[0]) for slab, grad in zip(slabs, before)]
    assert abs(factors[0] - factors[1]) < 1e-12, f"slabs were scaled by {factors}: not one factor"


def test_clip_grad_norm_is_pytorchs_equation():
    slabs = two_slabs()
    before, norm = [slab.grad.copy() for slab in slabs], norm_of(slabs)
    clip_grad_norm(slabs, 0.5)
    for slab, grad in zip(slabs, before):
        assert np.allclose(slab.grad, grad * (0.5 / (norm + 1e-6)), rtol=1e-12, atol=0), \
            "the factor is max_norm / (norm + 1e-6)"


def test_clip_grad_norm_works_in_place():
    model = model_with_gradients(0)
    clip_grad_norm(model.slabs, 0.5)
    norm = math.sqrt(sum(float(np.sum(p.grad**2)) for p in model.parameters()))
    assert norm < 0.5001, f"the parameters' own gradients, views of the slab, have the norm {norm}"


def test_clip_grad_norm_leaves_small_gradients_alone():
    slabs = two_slabs()
    before = [slab.grad.copy() for slab in slabs]
    clip_grad_norm(slabs, 1e3)
    assert all(np.array_equal(s.grad, b) for s, b in zip(slabs, before)), \
        "gradients below max_norm must stay as they are: clipping never scales up"


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_clip_grad_norm_returns_the_norm_before(max_norm):
    slabs = two_slabs()
    expected = norm_of(slabs)
    norm = clip_grad_norm(slabs, max_norm)
    assert norm is not None and abs(norm - expected) < 1e-12, f"returned {norm}, not {expected}"


@pytest.mark.parametrize("max_norm", [0.0, -1.0])
def test_clip_grad_norm_refuses_zero(max_norm):
    with pytest.raises(ValueError, match="positive"):
        clip_grad_norm(two_slabs(), max_norm)


def test_warmup_cosine_warms_up_in_a_straight_line():
    rates = [warmup_cosine(step, 1.0, 4, 20) for step in range(4)]
    assert np.allclose(rates, [0.25, 0.5, 0.75, 1.0], atol=1e-15), f"steps 0 … 3 have {rates}"


def test_warmup_cosine_ends_at_the_floor():
    rate = warmup_cosine(19, 1.0, 4, 20, floor=0.1)
    assert abs(rate - 0.1) < 1e-15, f"the last of 20 steps has {rate}, not the floor 0.1"


def test_warmup_cosine_is_half_a_cosine_in_between():
    rates = [warmup_cosine(step, 2.0, 4, 20, floor=0.4) for step in range(4, 20)]
    expected = [0.4 + 1.6 * (1 + math.cos(math.pi * (i + 1) / 16)) / 2 for i in range(16)]
    assert np.allclose(rates, expected, atol=1e-14), f"steps 4 … 19 have {rates}"


def test_warmup_cosine_stays_at_the_floor_afterwards():
    rates = [warmup_cosine(step, 1.0, 4, 20, floor=0.1) for step in (20, 30, 36, 100)]
    assert np.allclose(rates, 0.1, atol=1e-15), f"steps 20, 30, 36 and 100 have {rates}"


@pytest.mark.parametrize("num_warmup, num_steps", [(0, 5), (5, 5), (3, 1)])
def test_warmup_cosine_of_odd_lengths(num_warmup, num_steps):
    rates = [warmup_cosine(step, 1.0, num_warmup, num_steps) for step in range(8)]
    assert all(0 <= rate <= 1 for rate in rates), f"the rates are {rates}"
