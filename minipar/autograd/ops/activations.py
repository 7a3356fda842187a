"""Non-linearities, and dropout: one element at a time, g standing for dL/dy."""

import math

import numpy as np

from ...backend import Array, cache_blocks
from ..function import Function
from ..tensor import Tensor
from .elementwise import as_rows


class Relu(Function):
    """y = max(x, 0);  dx = g where x > 0.  Saves y, which the next layer saves too, not x."""

    @staticmethod
    def forward(ctx, x):
        y = np.maximum(x, 0)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved
        return [lambda: g * (y() > 0)]


class Tanh(Function):
    """y = tanh x;  dx = g (1 - y²)."""

    flops_per_element = 1, 3

    @staticmethod
    def forward(ctx, x):
        y = np.tanh(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved

        def dx():
            square = np.square(y())
            return g * (1 - square)
        return [dx]


class Gelu(Function):
    """y = x p with p = (1 + tanh u) / 2, u = a x + b x³, a = √(2/π), b = 0.044715 a.

    Hendrycks & Gimpel 2016, equation 2 (the tanh form).  Saves its derivative
    p + x dp/dx = p + 2 y (1 - p) (a + 3 b x²) rather than x: one array either way, and no second
    tanh.
    """

    @staticmethod
    def flops(ctx, out, x):
        return (14 if ctx.needs_grad[0] else 8) * out.size, [out.size]

    @staticmethod
    def forward(ctx, x):
        a = math.sqrt(2 / math.pi)
        b = 0.044715 * a
        need_slope = ctx.needs_grad[0]
        if not x.ndim:
            raise ValueError("gelu of a 0-d tensor: give it at least one axis")
        y = np.empty_like(x)
        slope = np.empty_like(x) if need_slope else x
        for x_, y_, slope_ in cache_blocks(as_rows(x), as_rows(y), as_rows(slope)):
            square = x_ * x_
            p = square * b
            p += a
            p *= x_
            np.tanh(p, out=p)
            p *= 0.5
            p += 0.5
            np.multiply(x_, p, out=y_)
            if need_slope:
                square *= 6 * b
                square += 2 * a
                square *= y_
                np.subtract(1, p, out=slope_)
                slope_ *= square
                slope_ += p
        ctx.save(slope)
        return y

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved
        return [lambda: g * slope()]


class Dropout(Function):
    """y = x keep / (1 - rate) with a mask of booleans;  dx = g keep / (1 - rate)."""

    expects = "x and a boolean mask that broadcasts to it"
    flops_per_element = 2, 2, 0

    @staticmethod
    def forward(ctx, x, keep, rate):
        if np.broadcast_shapes(x.shape, keep.shape) != x.shape:
            raise ValueError("the mask has more elements than x")
        ctx.save(keep)
        ctx.scale = 1 / (1 - rate)
        y = x * keep
        y *= ctx.scale
        return y

    @staticmethod
    def backward(ctx, g):
        (keep,), scale = ctx.saved, ctx.scale

        def dx():
            d = g * keep()
            d *= scale
            return d
        return [dx, None]


def relu(x: Tensor) -> Tensor:
    """max(x, 0), element by element."""
    return Relu.apply(x)


def tanh(x: Tensor) -> Tensor:
    """tanh x, element by element."""
    return Tanh.apply(x)


def gelu(x: Tensor) -> Tensor:
    """The tanh form of the Gaussian error linear unit, of x (..., n)."""
    return Gelu.apply(x)


def dropout(x: Tensor, keep: Array, rate: float) -> Tensor:
    """x with the elements where `keep` is False set to 0, the others scaled by 1 / (1 - rate)."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate {rate} is not in [0, 1)")
    return Dropout.apply(x, keep, rate=rate)
