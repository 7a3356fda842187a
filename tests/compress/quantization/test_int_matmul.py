"""Integer products: exact, also at the edges; the bound of a quantized dot product."""

import numpy as np
import pytest

from minipar.compress import IntGrid, affine_matmul
from minipar.compress.quantization.int_matmul import int_matmul
from minipar.compress.quantization.observers import weight_qparams


def codes(draw, dtype, shape):
    info = np.iinfo(dtype)
    return draw.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("a, b", [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("inner", [0, 1, 257, 3001])
def test_products_are_exact(a, b, inner):
    draw = np.random.default_rng(inner)
    x, w = codes(draw, a, (5, inner)), codes(draw, b, (inner, 4))
    expected = x.astype(np.int64) @ w.astype(np.int64)
    found = int_matmul(x, w)
    assert found.dtype == np.int32 and np.array_equal(found, expected)
    x_zero, w_zero = codes(draw, a, (5, 1)), codes(draw, b, (1, 4))
    expected = (x.astype(np.int64) - x_zero) @ (w.astype(np.int64) - w_zero)
    assert np.array_equal(affine_matmul(x, x_zero, w, w_zero), expected)


@pytest.mark.parametrize("dtype, value, inner", [(np.int8, -128, 100_000), (np.uint8, 255, 33_000)])
def test_the_largest_sums_are_exact(dtype, value, inner):
    """One more product in a block of float32, and the last integers would be lost."""
    x = np.full((1, inner), value, dtype)
    x[0, :3] = 1, 3, 5
    assert int_matmul(x, x.T)[0, 0] == 35 + (inner - 3) * value**2


@pytest.mark.parametrize("inner", [33_025, 33_026, 65_000])
def test_the_largest_differences_from_zero_points_are_exact(inner):
    """From 33,026 products of 255 · 255 on, a sum is no int32: it came out negative."""
    x, w = np.zeros((1, inner), np.uint8), np.full((inner, 2), -128, np.int8)
    w[:, 1] = 127
    found = affine_matmul(x, np.uint8(255), w, np.array([[127, -128]], np.int8))
    assert found.tolist() == [[255 * 255 * inner, -255 * 255 * inner]]


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_a_dot_product_is_within_its_bound(scheme):
    """K (|w| s_x + |x| s_w) / 2 + K s_x s_w / 4."""
    draw, grid, largest = np.random.default_rng(3), IntGrid(8, scheme), 0.0
    for k in (1, 7, 64, 500):
        x, w = draw.uniform(-2, 3, (20, k)), draw.uniform(-0.3, 0.5, (k, 20))
        (sx, zx), (sw, zw) = (weight_qparams(a.reshape(1, -1), grid) for a in (x, w))
        sums = affine_matmul(grid.encode(x, sx, zx), zx, grid.encode(w, sw, zw), zw)
        error = np.abs(x @ w - sums * float(sx[0, 0]) * float(sw[0, 0])).max()
        sx, sw = float(sx[0, 0]), float(sw[0, 0])
        bound = k * (np.abs(w).max() * sx + np.abs(x).max() * sw) / 2 + k * sx * sw / 4
        assert error <= bound
        largest = max(largest, error / bound)
    assert largest > 0.1                    # the bound says something


def test_what_cannot_be_exact_is_refused():
    with pytest.raises(TypeError, match="int8 or uint8, not float64"):
        int_matmul(np.zeros((1, 1)), np.zeros((1, 1), np.int8))
    with pytest.raises(ValueError, match="may exceed int32"):
        int_matmul(np.zeros((0, 200_000), np.int8), np.zeros((200_000, 0), np.int8))
