"""Clipping by the global norm."""

import math

import numpy as np
import pytest

from minipar.backend import arrays
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import clip_grad_norm, grad_norm

SIZES = {"vocab_size": 7, "context": 4, "num_layers": 2, "num_heads": 2, "width": 8}


def model_with_gradients(fill=None, dtype=np.float64):
    models = [GPT(GPTConfig(**SIZES)).initialize(0, dtype), MLP([3, 5, 2]).initialize(0, dtype)]
    slabs = [model.slabs[0] for model in models]
    for i, slab in enumerate(slabs):
        values = np.random.default_rng(i).standard_normal(slab.grad.size)
        slab.grad[...] = values if fill is None else fill
        for p in slab.parameters:
            p.grad = p.slot.get_grad_buffer()
    return models, slabs


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block_bytes", [64, 1 << 18])
def test_gradients_of_one_have_the_norm_root_of_their_number(dtype, block_bytes, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", block_bytes)
    models, slabs = model_with_gradients(1.0, dtype)
    assert grad_norm(slabs) == math.sqrt(sum(model.num_parameters() for model in models))


def test_the_norm_is_over_all_slabs_and_all_is_scaled_alike():
    _, slabs = model_with_gradients()
    before = [slab.grad.copy() for slab in slabs]
    norm = math.sqrt(sum(float(g @ g) for g in before))
    got = clip_grad_norm(slabs, 0.5)
    assert abs(got / norm - 1) < 1e-14
    for slab, old in zip(slabs, before):
        np.testing.assert_allclose(slab.grad, old * (0.5 / (norm + 1e-6)), rtol=1e-14)
    assert abs(grad_norm(slabs) - 0.5) < 1e-6


def test_a_small_norm_is_left_alone():
    _, slabs = model_with_gradients()
    before = [slab.grad.copy() for slab in slabs]
    norm = clip_grad_norm(slabs, 1e6)
    for slab, old in zip(slabs, before):
        np.testing.assert_array_equal(slab.grad, old)
    assert norm < 1e6


def test_parameters_without_gradient_count_as_zero():
    models, slabs = model_with_gradients(1.0)
    models[1].zero_grad()
    slabs[1].grad[...] = np.nan
    assert grad_norm(slabs) == math.sqrt(models[0].num_parameters())


def test_squares_are_summed_in_float64():
    _, slabs = model_with_gradients(1e30, np.float32)           # whose square float32 cannot hold
    norm = clip_grad_norm(slabs, 1.0)
    assert np.isfinite(norm) and abs(grad_norm(slabs) - 1) < 1e-5
    assert all(slab.grad.dtype == np.float32 for slab in slabs)


def test_no_gradient_at_all():
    models, slabs = model_with_gradients()
    for model in models:
        model.zero_grad()
    assert clip_grad_norm(slabs, 1.0) == 0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinities_and_nans_show_in_the_norm_and_nothing_is_scaled(bad):
    _, slabs = model_with_gradients()
    slabs[1].grad[3] = bad
    before = [slab.grad.copy() for slab in slabs]
    norm = clip_grad_norm(slabs, 0.5)
    assert not np.isfinite(norm) and np.isnan(norm) == np.isnan(bad)
    for slab, old in zip(slabs, before):
        np.testing.assert_array_equal(slab.grad, old)


@pytest.mark.parametrize("max_norm", [0, -1.0])
def test_a_maximum_is_positive(max_norm):
    with pytest.raises(ValueError, match=f"max_norm must be positive, not {max_norm}"):
        clip_grad_norm(model_with_gradients()[1], max_norm)


def test_clipping_keeps_the_direction():
    _, slabs = model_with_gradients()
    free = [slab.grad.copy() for slab in slabs]
    clip_grad_norm(slabs, 0.1)
    ratios = np.concatenate([slab.grad / old for slab, old in zip(slabs, free)])
    assert np.ptp(ratios) < 1e-15 and 0 < ratios[0] < 1
