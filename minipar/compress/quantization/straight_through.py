"""The straight-through estimator: a derivative for rounding.

          x̂   ┌──────       Rounding is a staircase.  Its derivative is 0 almost everywhere, and
            ┌─┘             nothing would be learned.  So backward takes that of the line which the
          ┌─┘               stairs follow, 1, and where the grid ends, that of the clip, 0.
    ──────┘        x

Source: Bengio, Léonard & Courville, Estimating or propagating gradients through stochastic neurons
for conditional computation (2013).
"""

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array
from .affine import Grid


class FakeQuantize(Function):
    """x̂, the values of x's codes on a grid."""

    rule = "x, and scale and zero that broadcast against it"

    @staticmethod
    def flops(ctx, out, x, scale, zero):
        return 6 * out.size, [out.size, 0, 0]

    @staticmethod
    def forward(ctx, x, scale, zero, grid):
        codes = np.rint(x / scale) + zero
        ctx.save((codes >= grid.lowest) & (codes <= grid.highest))
        return (np.clip(codes, grid.lowest, grid.highest) - zero) * scale

    @staticmethod
    def backward(ctx, g):
        # dx = g inside of the grid's range, 0 outside
        (inside,) = ctx.saved
        return [lambda: g * inside(), None, None]


def fake_quantize(x: Tensor, scale: Array, zero: Array, grid: Grid) -> Tensor:
    """x (any shape) rounded to the grid, of the same dtype; scale and zero broadcast against x."""
    return FakeQuantize.apply(x, scale.astype(x.dtype), zero.astype(x.dtype), grid=grid)
