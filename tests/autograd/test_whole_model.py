"""Promises that hold for every operation of a model: read-only gradients, one dtype."""

from dataclasses import replace

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor, saved_tensors_hooks
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.optim import SGD, AdamW, clip_grad_norm
from tests.support.operations import operations

OPERATIONS = [op for op in operations() if "backward" in vars(op)]
IDS = np.array([[1, 2, 3, 0], [4, 5, 6, 6]])
TARGETS = np.array([[2, 3, -100, 1], [5, 6, 6, -100]])


def build(dtype, **changes):
    config = GPTConfig(7, context=4, num_layers=2, num_heads=2, width=8, dropout=0.3)
    return GPT(replace(config, **changes)).initialize(0, dtype)


def freeze(array):
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"num_kv_heads": 1}])
def test_no_operation_writes_into_a_gradient_or_a_saved_array(changes, monkeypatch):
    """Every gradient that is passed, and everything that was saved, comes as a read-only view."""
    frozen = []
    for op in OPERATIONS:
        def backward(ctx, g, original=op.backward):
            frozen.append(freeze(g))
            return [freeze(piece) for piece in original(ctx, frozen[-1])]
        monkeypatch.setattr(op, "backward", staticmethod(backward))
    model, plain = build(np.float64, **changes), build(np.float64, **changes)
    with training_step(1, 0, [0, 1]):
        with saved_tensors_hooks(freeze, freeze):
            loss = model.loss(IDS, TARGETS)
        loss.backward()
        monkeypatch.undo()
        plain.loss(IDS, TARGETS).backward()
    assert len(frozen) > 30 and not any(np.asarray(g).flags.writeable for g in frozen if g.ndim)
    np.testing.assert_array_equal(model.slabs[0].grad, plain.slabs[0].grad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [lambda s: SGD(s, 0.1, momentum=0.9), lambda s: AdamW(s, 0.1)])
def test_every_array_of_training_has_the_dtype_of_the_model(dtype, make, monkeypatch):
    seen = []

    def look(array):
        if getattr(array, "dtype", np.dtype(int)).kind == "f":
            seen.append(array.dtype)
        return array

    for op in OPERATIONS:
        def forward(ctx, *arrays, original=op.forward, **options):
            return look(original(ctx, *arrays, **options))

        def backward(ctx, g, original=op.backward):
            return [(lambda p=p: look(p())) if callable(p) else look(p)
                    for p in original(ctx, look(g))]
        monkeypatch.setattr(op, "forward", staticmethod(forward))
        monkeypatch.setattr(op, "backward", staticmethod(backward))
    model = build(dtype)
    optimizer = make(model.slabs)
    for step in range(2):
        optimizer.zero_grad()
        with training_step(0, step, [0, 1]), saved_tensors_hooks(look, look):
            loss = model.loss(IDS, TARGETS)
            loss.backward()
        clip_grad_norm(model.slabs, 0.1)
        optimizer.step()
    assert len(seen) > 200 and set(seen) == {np.dtype(dtype)}
    assert loss.dtype == dtype
    for p in model.parameters():
        assert p.data.dtype == p.grad.dtype == dtype and np.isfinite(p.data).all()
    for state in optimizer.states:
        assert {array.dtype for array in state.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "relu", "gelu", "softmax",
                                  "log_softmax", "sum", "mean", "max", "transpose"])
def test_float32_stays_float32_through(name):
    x = Tensor(np.full((2, 3), 0.5, np.float32), requires_grad=True)
    y = getattr(ag, name)(x)
    assert y.dtype == np.float32
    (y * 2.5 - 1).sum().backward()
    assert x.grad.dtype == np.float32


def test_astype_is_the_one_way_from_one_precision_to_another():
    x = Tensor(np.ones((2, 2), np.float32), requires_grad=True)
    y = ag.astype(x, np.float64) * np.ones(2)
    assert y.dtype == np.float64
    y.sum().backward()
    assert x.grad.dtype == np.float32
