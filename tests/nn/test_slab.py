"""Slabs: parameters and gradients are views of flat arrays, and segments say where."""

import math

import numpy as np
import pytest

from minipar.backend.shape_array import ShapeArray
from minipar.nn import GPT, MLP, GPTConfig, Slab

CONFIG = GPTConfig(vocab_size=7, context=4, num_layers=2, num_heads=2, width=8)
IDS = np.array([[1, 2, 3], [4, 5, 6]])


@pytest.fixture
def model():
    return GPT(CONFIG).initialize(0, np.float64)


def test_segments_tile_the_slab_in_the_order_of_the_names(model):
    (slab,) = model.slabs
    start = 0
    for segment, (name, p) in zip(slab.segments, model.named_parameters(), strict=True):
        assert segment.name == name and segment.start == start
        assert segment.shape == segment.global_shape == p.shape and segment.replicated == ()
        assert segment.box == tuple((0, n) for n in p.shape)
        start += math.prod(p.shape)
        assert segment.stop == start
    assert start == slab.data.size == slab.grad.size == model.num_parameters()


def test_parameters_and_gradients_are_views(model):
    (slab,) = model.slabs
    model.loss(IDS, IDS).backward()
    for segment, p in zip(slab.segments, slab.parameters):
        for flat, own in ((slab.data, p.data), (slab.grad, p.grad)):
            part = flat[segment.start:segment.stop]
            assert np.shares_memory(part, own) and own.shape == segment.shape
            assert not np.shares_memory(flat[:segment.start], own)
            np.testing.assert_array_equal(part, own.reshape(-1))
    slab.data[:] = 3.0
    assert all((p.data == 3).all() for p in model.parameters())


def test_gradients_accumulate_in_the_slab_and_restart_after_zero_grad(model):
    (slab,) = model.slabs
    buffer = slab.grad
    model.loss(IDS, IDS).backward()
    once = buffer.copy()
    model.loss(IDS, IDS).backward()
    np.testing.assert_allclose(buffer, 2 * once, rtol=1e-13)
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    buffer[:] = np.nan                          # what is left from before must not matter
    model.loss(IDS, IDS).backward()
    np.testing.assert_array_equal(buffer, once)
    assert slab.grad is buffer


def test_complete_grad_is_zero_where_no_gradient_came():
    model = MLP([3, 4, 2]).initialize(0, np.float64)
    (slab,) = model.slabs
    slab.grad[:] = np.nan
    model[2].weight.sum().backward()
    grad = slab.complete_grad()
    assert grad is slab.grad and not np.isnan(grad).any()
    assert (model[2].weight.grad == 1).all() and not model[0].weight.grad.any()
    model[0].weight.sum().backward()            # and from then on gradients are added
    assert (model[0].weight.grad == 1).all() and grad.sum() == 8 + 12
    slab.zero_grad()
    assert model[2].weight.grad is None


def test_a_new_slab_takes_over_what_the_parameters_held(model):
    before = model.state_dict()
    model.loss(IDS, IDS).backward()
    halves = list(model.named_parameters())
    slabs = [Slab(halves[:9], np.empty(0)), Slab(halves[9:], np.empty(0, np.float32))]
    after = dict(model.named_parameters())
    for name, value in before.items():
        np.testing.assert_array_equal(after[name].data, value.astype(after[name].dtype))
        assert after[name].grad is None         # gradients were of the old slab
    assert [s.data.dtype for s in slabs] == [np.float64, np.float32]
    assert sum(s.data.size for s in slabs) == model.num_parameters()
    assert not np.shares_memory(slabs[0].data, model.slabs[0].data)


def test_a_slab_of_shapes_has_no_numbers():
    model = GPT(CONFIG).initialize(array=ShapeArray(()  , np.float32), dtype=np.float16)
    (slab,) = model.slabs
    assert isinstance(slab.data, ShapeArray) and slab.data.dtype == np.float16
    assert slab.data.size == model.num_parameters()
    for p in model.parameters():
        assert p.data.base is slab.data and p.slot.get_grad_buffer().base is slab.grad
