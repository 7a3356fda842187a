"""Exercises affine_encode, calculate_qparams, zero_points, straight_through and gptq_columns."""

import numpy as np

from minipar.autograd import Tensor
from minipar.compress.quantization.gptq import round_columns
from minipar.compress.quantization.int_matmul import affine_matmul
from minipar.compress.quantization.qat import fake_quantize
from minipar.number_formats.affine import IntGrid

SYMMETRIC, ASYMMETRIC = IntGrid(8, "symmetric"), IntGrid(4, "asymmetric")


def test_encode_rounds_to_nearest():
    x = np.array([-1.1, -0.9, -0.4, 0.0, 0.4, 0.9, 1.1])
    codes = SYMMETRIC.encode(x, np.float32(1), np.int8(0))
    assert codes.tolist() == [-1, -1, 0, 0, 0, 1, 1]
    assert codes.dtype == np.int8, f"the codes of this grid are int8, not {codes.dtype}"


def test_encode_rounds_ties_to_even():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    assert SYMMETRIC.encode(x, np.float32(1), np.int8(0)).tolist() == [-2, -2, 0, 0, 2, 2, 4]
    # before the zero point is added: 2.5 + 5 would go to 8
    assert ASYMMETRIC.encode(x, np.float32(1), np.uint8(5)).tolist() == [3, 3, 5, 5, 7, 7, 9]


def test_encode_clips_codes_not_numbers():
    x = np.array([-1000.0, -4, 0, 4, 1000])
    assert ASYMMETRIC.encode(x, np.float32(0.5), np.uint8(6)).tolist() == [0, 0, 6, 14, 15]
    assert SYMMETRIC.encode(x, np.float32(0.5), np.int8(0)).tolist() == [-127, -8, 0, 8, 127]


def test_encode_with_a_grid_for_each_row():
    x, scale, zero = np.ones((2, 3)), np.array([[0.5], [0.25]]), np.array([[1], [2]], np.uint8)
    assert ASYMMETRIC.encode(x, scale, zero).tolist() == [[3] * 3, [6] * 3]


def fitted(grid, low, high):
    return grid.calculate_qparams(np.array([low]), np.array([high]))


def test_fit_a_symmetric_grid_to_the_larger_side():
    for low, high in ((-254.0, 10.0), (-10.0, 254.0)):
        scale, zero = fitted(SYMMETRIC, low, high)
        assert scale[0] == 2 and zero[0] == 0
        assert scale.dtype == np.float32 and zero.dtype == np.int8


def test_fit_has_a_place_for_zero():
    for low, high, scale, zero in ((3.0, 30.0, 2, 0), (-30.0, -3.0, 2, 15), (-10.0, 20.0, 2, 5)):
        found = fitted(ASYMMETRIC, low, high)
        assert found[0][0] == scale, f"from {low} to {high}: scale {found[0][0]}, not {scale}"
        assert found[1][0] == zero and found[1].dtype == np.uint8


def test_fit_keeps_all_within_half_a_step():
    draw = np.random.default_rng(0)
    for grid in (SYMMETRIC, ASYMMETRIC, IntGrid(4, "symmetric_full")):
        x = draw.standard_normal((40, 50)) + draw.standard_normal((40, 1))
        scale, zero = grid.calculate_qparams(x.min(1, keepdims=True), x.max(1, keepdims=True))
        error = np.abs(x - grid.decode(grid.encode(x, scale, zero), scale, zero))
        assert np.all(error <= scale / 2 * (1 + 1e-5))


def test_fit_of_nothing_but_zeros():
    for grid in (SYMMETRIC, ASYMMETRIC):
        scale, zero = fitted(grid, 0.0, 0.0)
        assert scale[0] > 0, "a scale of 0: 0 / 0 is no number"
        assert grid.decode(grid.encode(np.zeros(1), scale, zero), scale, zero)[0] == 0


def test_fit_refuses_what_is_not_finite():
    for low, high in ((np.nan, 1.0), (0.0, np.inf)):
        try:
            fitted(SYMMETRIC, low, high)
        except ValueError:
            continue
        raise AssertionError(f"a grid from {low} to {high} was made: raise ValueError")


def product(seed, inner, a_zero, b_zero):
    draw = np.random.default_rng(seed)
    a = draw.integers(0, 256, (4, inner)).astype(np.uint8)
    b = draw.integers(-128, 128, (inner, 3)).astype(np.int8)
    expected = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
    found = affine_matmul(a, a_zero, b, b_zero)
    assert np.array_equal(found, expected), f"{found.tolist()}, not {expected.tolist()}"


def test_products_without_zero_points():
    product(0, 20, np.uint8(0), np.int8(0))


def test_products_with_one_zero_point():
    product(1, 20, np.uint8(131), np.int8(0))
    product(2, 20, np.uint8(0), np.int8(-7))


def test_products_with_both_zero_points():
    product(3, 20, np.uint8(131), np.int8(-7))
    product(4, 4000, np.uint8(200), np.int8(-100))


def test_products_with_a_zero_point_for_each_row_and_column():
    product(5, 20, np.array([[1], [2], [3], [255]], np.uint8), np.array([[9, -8, 7]], np.int8))


def test_products_too_large_for_int32():
    a, b = np.zeros((1, 33_026), np.uint8), np.full((33_026, 1), -128, np.int8)
    found = affine_matmul(a, np.uint8(255), b, np.int8(127)).tolist()
    assert found == [[255 * 255 * 33_026]], f"{found} is not the sum of 33,026 times 255 · 255"


def gradients(x, scale, zero, grid):
    x = Tensor(np.array(x), requires_grad=True)
    y = fake_quantize(x, np.float32(scale), grid.dtype.type(zero), grid)
    y.backward(np.arange(1.0, 1 + x.size))
    return x.grad.tolist()


def test_the_gradient_goes_straight_through():
    assert gradients([0.3, -0.7, 1.2, 0.0], 0.5, 0, SYMMETRIC) == [1, 2, 3, 4]
    assert gradients([0.3, -0.7, 1.2, 0.0], 0.01, 0, SYMMETRIC) == [1, 2, 3, 4]


def test_no_gradient_where_it_was_clipped():
    assert gradients([-63.0, -64.0, 63.0, 64.0], 0.5, 0, SYMMETRIC) == [1, 0, 3, 0]
    assert gradients([-3.0, -3.4, 4.5, 4.9], 0.5, 6, ASYMMETRIC) == [1, 0, 3, 0]


def test_the_gradient_is_not_changed_for_others():
    x = Tensor(np.array([100.0, 0.0]), requires_grad=True)
    y = fake_quantize(x, np.float32(0.5), np.int8(0), SYMMETRIC)
    g = np.array([1.0, 2.0])
    y.backward(g)
    assert g.tolist() == [1, 2], "gradients passed along are read only"


def columns(seed=0, num_out=4, num_in=6):
    """A weight, the inverse of its Hessian, and its root U."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((50, num_in)) @ draw.standard_normal((num_in, num_in))
    inverse = np.linalg.inv(2 * x.T @ x)
    return draw.standard_normal((num_out, num_in)) * 3, inverse, np.linalg.cholesky(inverse).T


def test_gptq_without_dependence_rounds():
    w, _, _ = columns()
    expected = np.rint(w)
    errors = round_columns(w, np.eye(6), np.rint, w != 0)
    assert np.array_equal(w, expected), "w is to become its rounded values, in place"
    assert errors.shape == w.shape


def test_gptq_follows_optimal_brain_surgeon():
    w, inverse, u = columns(1)
    expected, left = w.copy(), np.linalg.inv(inverse)
    for i in range(w.shape[1]):
        now = np.linalg.inv(left[i:, i:])
        error = expected[:, i] - np.rint(expected[:, i])
        expected[:, i:] -= np.outer(error / now[0, 0], now[0])
    round_columns(w, u, np.rint, w != 0)
    np.testing.assert_allclose(w, expected, atol=1e-9)


def test_gptq_returns_errors_for_the_columns_after_the_block():
    w, _, u = columns(2)
    whole = w.copy()
    round_columns(whole, u, np.rint, w != 0)
    errors = round_columns(w[:, :3], u[:3, :3], np.rint, w[:, :3] != 0)
    w[:, 3:] -= errors @ u[:3, 3:]
    round_columns(w[:, 3:], u[3:, 3:], np.rint, w[:, 3:] != 0)
    np.testing.assert_allclose(w, whole, atol=1e-9)
