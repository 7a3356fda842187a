"""Integers, straight-through gradients and ranges: PyTorch's, where the convention is the same."""

import numpy as np
import pytest
import torch

from minipar.autograd import Tensor
from minipar.compress.quantization.int_matmul import int_matmul
from minipar.compress.quantization.observers import Observer
from minipar.compress.quantization.qat import fake_quantize
from minipar.number_formats.affine import IntGrid

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize")     # deprecated, and right

DRAW = np.random.default_rng(0)
X = (DRAW.standard_normal((40, 50)) * 3).astype(np.float32)
X[0, :6] = 0.5, 1.5, 2.5, -0.5, -1.5, 1e4
ASYMMETRIC, FULL = IntGrid(8, "asymmetric"), IntGrid(8, "symmetric_full")


@pytest.mark.parametrize("grid, dtype, scale, zero", [
    (ASYMMETRIC, torch.quint8, 0.05, 120), (FULL, torch.qint8, 0.03, -7),
    (FULL, torch.qint8, 1, 0)])
def test_integers_of_a_tensor(grid, dtype, scale, zero):
    theirs = torch.quantize_per_tensor(torch.tensor(X), scale, zero, dtype)
    ours = grid.encode(X, np.float32(scale), grid.dtype.type(zero))
    assert np.array_equal(ours, theirs.int_repr().numpy())
    values = grid.decode(ours, np.float32(scale), grid.dtype.type(zero))
    np.testing.assert_allclose(values, theirs.dequantize().numpy(), rtol=1e-6)


def test_integers_of_channels():
    scales, zeros = DRAW.uniform(0.01, 0.1, 40), DRAW.integers(-9, 9, 40)
    theirs = torch.quantize_per_channel(torch.tensor(X), torch.tensor(scales), torch.tensor(zeros),
                                        0, torch.qint8)
    ours = FULL.encode(X, scales[:, None].astype(np.float32), zeros[:, None].astype(np.int8))
    assert np.array_equal(ours, theirs.int_repr().numpy())


def test_straight_through_gradients():
    theirs = torch.tensor(X, requires_grad=True)
    g = DRAW.standard_normal(X.shape).astype(np.float32)
    y = torch.fake_quantize_per_tensor_affine(theirs, 0.05, 131, 0, 255)
    y.backward(torch.tensor(g))
    ours = Tensor(X, requires_grad=True)
    found = fake_quantize(ours, np.float32(0.05), np.uint8(131), ASYMMETRIC)
    found.backward(g)
    np.testing.assert_allclose(found.data, y.detach().numpy(), rtol=1e-6)
    assert np.array_equal(ours.grad, theirs.grad.numpy())


@pytest.mark.parametrize("grid, dtype, scheme", [
    (ASYMMETRIC, torch.quint8, torch.per_tensor_affine),
    (FULL, torch.qint8, torch.per_tensor_symmetric)])
@pytest.mark.parametrize("name, kind", [("minmax", "MinMaxObserver"),
                                        ("moving", "MovingAverageMinMaxObserver")])
def test_ranges(grid, dtype, scheme, name, kind):
    theirs = getattr(torch.ao.quantization, kind)(dtype=dtype, qscheme=scheme)
    ours = Observer(name, grid)
    for part in np.split(X, 4):
        theirs(torch.tensor(part))
        ours.observe(part.reshape(1, -1))
    scale, zero = theirs.calculate_qparams()
    np.testing.assert_allclose(ours.calculate_qparams()[0].item(), scale.item(), rtol=1e-6)
    assert ours.calculate_qparams()[1].item() == zero.item()


def test_products():
    a, b = (DRAW.integers(-128, 128, s).astype(np.int8) for s in ((32, 64), (64, 24)))
    assert np.array_equal(int_matmul(a, b), torch._int_mm(torch.tensor(a), torch.tensor(b)))
