"""Convolution as a matrix product: cut out each window of the image, multiply it by the weights.

    image (h, w, c)     ┌───┐                              im2col makes a row of each window:
                        │▒▒▒│░ ·      window of k × k      (h', w', k·k·c), and then
                        │▒▒▒│░ ·      pixels, moved by     y = rows weight + bias
                        └───┘· ·      `stride` each time   is an ordinary linear layer

A pixel is in one row for each window over it, so its gradient is the sum over these rows.
Chellapilla, Puri & Simard 2006, High performance convolutional neural
networks for document processing.
"""

import math

import numpy as np

from ..autograd import Function, Tensor, linear
from .module import Module
from .parameter import Parameter, normal, zeros


def num_windows(length: int, kernel: int, stride: int) -> int:
    """The number of windows that fit along an axis."""
    return (length - kernel) // stride + 1


class Im2col(Function):
    """Windows of x (b, h, w, c) as rows (b, h', w', k·k·c);  dx = each row added to its window."""

    expects = "images (b, h, w, c) of at least kernel × kernel pixels"

    def flops(ctx, out, x):
        """FLOPs: forward moves numbers, backward adds them."""
        return 0, [out.size]

    def forward(ctx, x, kernel, stride):
        """The windows, as rows."""
        b, h, w, c = x.shape
        if min(h, w) < kernel:
            raise ValueError(f"no window of {kernel} × {kernel} fits")
        rows, columns = num_windows(h, kernel, stride), num_windows(w, kernel, stride)
        out = np.empty((b, rows, columns, kernel, kernel, c), x.dtype, like=x)
        for i, j in np.ndindex(kernel, kernel):         # one pixel of all windows at a time
            out[:, :, :, i, j] = x[:, i:i + rows * stride:stride, j:j + columns * stride:stride]
        ctx.shape, ctx.kernel, ctx.stride = x.shape, kernel, stride
        return out.reshape(b, rows, columns, kernel * kernel * c)

    def backward(ctx, g):
        """Each row added to its window."""
        shape, kernel, stride = ctx.shape, ctx.kernel, ctx.stride
        return [lambda: col2im(g, shape, kernel, stride)]


def col2im(rows: np.ndarray, shape: tuple[int, ...], kernel: int, stride: int) -> np.ndarray:
    """Images of `shape` (b, h, w, c) with each row (…, k·k·c) added to its window."""
    b, high, wide, _ = rows.shape
    pixels = rows.reshape(b, high, wide, kernel, kernel, shape[-1])
    image = np.zeros(shape, rows.dtype, like=rows)
    for i, j in np.ndindex(kernel, kernel):
        image[:, i:i + high * stride:stride, j:j + wide * stride:stride] += pixels[:, :, :, i, j]
    return image


def im2col(x: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """x (b, h, w, c) → windows (b, h', w', kernel·kernel·c)."""
    return Im2col.apply(x, kernel=kernel, stride=stride)


class Conv2d(Module):
    """x (b, h, w, c) → (b, h', w', out_channels): each window times the weights, no padding."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1):
        super().__init__()
        fan_in = in_channels * kernel_size * kernel_size
        self.weight = Parameter((fan_in, out_channels), normal(math.sqrt(2 / fan_in)))
        self.bias = Parameter((out_channels,), zeros)
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, x: Tensor) -> Tensor:
        """x (b, h, w, c) → (b, h', w', out_channels)."""
        return linear(im2col(x, self.kernel_size, self.stride), self.weight, self.bias)
