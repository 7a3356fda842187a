"""Convolution: equal to its definition, gradients equal to finite differences."""

import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck
from minipar.nn.convolution import Conv2d, Im2col, col2im, im2col, num_windows

CASES = [((2, 5, 6, 3), 3, 1), ((1, 7, 5, 2), 3, 2), ((2, 4, 4, 1), 2, 2), ((1, 3, 3, 2), 3, 1),
         ((2, 3, 4, 2), 1, 1), ((1, 6, 7, 1), 2, 3)]


@pytest.mark.parametrize(("shape", "kernel", "stride"), CASES)
def test_a_convolution_is_its_definition(shape, kernel, stride):
    draw = np.random.default_rng(0)
    b, h, w, c = shape
    x, conv = draw.standard_normal(shape), Conv2d(c, 4, kernel, stride).initialize(0, np.float64)
    conv.bias.data[...] = draw.standard_normal(4)
    y = conv(Tensor(x)).data
    assert y.shape == (b, num_windows(h, kernel, stride), num_windows(w, kernel, stride), 4)
    weight = conv.weight.data.reshape(kernel, kernel, c, 4)
    for n, i, j in np.ndindex(*y.shape[:3]):
        window = x[n, i * stride:i * stride + kernel, j * stride:j * stride + kernel]
        expected = np.einsum("hwc,hwco->o", window, weight) + conv.bias.data
        np.testing.assert_allclose(y[n, i, j], expected, rtol=1e-12)


@pytest.mark.parametrize(("shape", "kernel", "stride"), CASES)
def test_gradients_are_finite_differences(shape, kernel, stride):
    draw = np.random.default_rng(1)
    x = Tensor(draw.standard_normal(shape), requires_grad=True)
    gradcheck(lambda x: im2col(x, kernel, stride), x)


@pytest.mark.parametrize(("shape", "kernel", "stride"), CASES)
def test_backward_is_the_transpose(shape, kernel, stride):
    """⟨im2col x, y⟩ = ⟨x, col2im y⟩."""
    draw = np.random.default_rng(2)
    x = draw.standard_normal(shape)
    rows = Im2col.apply(x, kernel=kernel, stride=stride).data
    y = draw.standard_normal(rows.shape)
    assert np.sum(rows * y) == pytest.approx(np.sum(x * col2im(y, shape, kernel, stride)))


def test_an_image_smaller_than_a_window_is_refused():
    with pytest.raises(ValueError, match="Im2col: no window of 3 × 3 fits; got .2, 2, 5, 1."):
        im2col(Tensor(np.zeros((2, 2, 5, 1))), 3)
