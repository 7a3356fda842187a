"""Deferred weight gradients: dx now, everything that leads only to parameters later."""

import gc
import weakref

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Function, Meter, Tensor
from minipar.nn import GPT, GPTConfig, LayerNorm, Linear, Sequential
from minipar.parallel import conjugate


@pytest.fixture
def x():
    return Tensor(np.random.default_rng(1).standard_normal((2, 4)), requires_grad=True)


def weights_used_in_every_way(model):
    """Casts, masks, products with constants, gathers: all of them lead only to parameters."""
    mask = np.random.default_rng(2).random((4, 4)) < 0.7
    first, norm, last = model

    def run(x):
        h = ag.linear(x, first.weight * mask * 2.0, first.bias)
        h = ag.gelu(norm(h))
        narrow = ag.astype(ag.astype(last.weight, np.float32), np.float64)
        return ag.linear(h, narrow.T, last.bias[::-1])
    return run


def small_model():
    return Sequential(Linear(4, 4), LayerNorm(4), Linear(4, 4)).initialize(3, np.float64)


def test_dx_is_complete_and_weights_are_untouched_until_called(x):
    model, fired = small_model(), []
    for name, p in model.named_parameters():
        p.slot.ready_hooks.append(lambda slot, name=name: fired.append(name))
    run = weights_used_in_every_way(model)
    upstream = np.random.default_rng(5).standard_normal((2, 4))
    run(x).backward(upstream)
    expected_x, expected = x.grad, model.slabs[0].grad.copy()
    assert all(p.grad.any() for p in model.parameters())
    assert sorted(fired) == sorted(n for n, _ in model.named_parameters())

    model.zero_grad()
    model.slabs[0].grad[...] = np.nan
    x.grad = None
    fired.clear()
    rest = run(x).backward(upstream, defer_weights=True)
    np.testing.assert_array_equal(x.grad, expected_x)               # bit by bit
    assert all(p.grad is None for p in model.parameters()) and not fired
    assert np.isnan(model.slabs[0].grad).all()
    rest()
    np.testing.assert_array_equal(model.slabs[0].grad, expected)
    assert sorted(fired) == sorted(n for n, _ in model.named_parameters())
    rest()                                                          # nothing is left to do
    np.testing.assert_array_equal(model.slabs[0].grad, expected)
    assert len(fired) == len(set(fired))


def test_no_operation_on_a_weight_runs_before_it_is_called(x):
    """Neither the product for dW nor the backward of casts, masks, gathers and copy_to."""
    model, reductions = small_model(), []

    def all_reduce(comm, array, **options):
        reductions.append(array.shape)
        return array
    copy_to, _ = conjugate.conjugate(lambda comm, array: array, all_reduce)
    for parameter in model.parameters():
        parameter.on_use(lambda w: copy_to.apply(w, comm=None))
    with Meter().running() as meter:
        y = weights_used_in_every_way(model)(x)
        rest = y.backward(np.ones((2, 4)), defer_weights=True)
        assert x.grad is not None and not reductions
        done = {name for name, phase in meter.calls if phase != "forward"}
        assert done == {"Linear", "Gelu", "LayerNorm"} and not meter.total_flops("weights")
        rest()
        done = {name for name, phase in meter.calls if phase == "weights"}
        assert done >= {"Linear", "LayerNorm", "AsType", "Multiply", "GetItem"}
    assert sorted(reductions) == sorted(p.shape for p in model.parameters())


def test_a_gathered_weight_is_freed_while_its_gradient_waits(x):
    class Gather(Function):
        def forward(ctx, shard):
            return shard.copy()

        def backward(ctx, g):
            return [lambda: g]
    layer = Linear(4, 5).initialize(0, np.float64)
    full = Gather.apply(layer.weight)
    alive = weakref.ref(full.data)
    y = ag.linear(x, full)
    del full
    assert alive() is not None                  # dx needs it
    gc.disable()
    try:
        rest = y.backward(np.ones((2, 5)), defer_weights=True)
        assert alive() is None
    finally:
        gc.enable()
    rest()
    np.testing.assert_allclose(layer.weight.grad, x.data.T @ np.ones((2, 5)))


def test_a_whole_gpt_defers_all_its_weights_and_none_of_its_dx():
    model = GPT(GPTConfig(11, 6, num_layers=2, num_heads=2, width=8)).initialize(0, np.float64)
    ids = np.array([[1, 2, 3, 4], [5, 6, 7, 10]])
    with Meter().running() as plain:
        model.loss(ids, ids).backward()
    expected = model.slabs[0].grad.copy()
    model.zero_grad()
    with Meter().running() as meter:
        loss = model.loss(ids, ids)
        rest = loss.backward(defer_weights=True)
        assert all(p.grad is None for p in model.parameters())
        products = meter.flops["Linear", "forward"] - 2 * 9 * 8 * ids.size     # without biases
        assert meter.flops["Linear", "backward"] == products        # all of dx
        assert ("Linear", "weights") not in meter.flops
        rest()
    np.testing.assert_array_equal(model.slabs[0].grad, expected)
    assert meter.flops == plain.flops and meter.calls == plain.calls
    assert meter.bytes == plain.bytes


def test_where_all_is_weight_everything_waits():
    layer = Linear(3, 2).initialize(0, np.float64)
    rest = (layer.weight * layer.weight).sum().backward(defer_weights=True)
    assert layer.weight.grad is None
    rest()
    np.testing.assert_array_equal(layer.weight.grad, 2 * layer.weight.data)
