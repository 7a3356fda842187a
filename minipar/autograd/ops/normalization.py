"""Operations that bring each row to a fixed scale: layer norm and RMS norm.

`layer_norm_by_autograd` and `rms_norm_by_autograd` are the formulas.  `LayerNorm` and `RMSNorm` are
the same, in one operation each.
"""

import numpy as np

from ...backend import as_rows, row_dot, row_sum
from ..function import Function
from ..tensor import Tensor
from .elementwise import sqrt


def layer_norm_by_autograd(x: Tensor, gain: Tensor, bias: Tensor,
                           epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / √(variance + ε) gain + bias, over the last axis.

    Ba, Kiros & Hinton 2016, equation 3.
    """
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered * centered).mean(-1, keepdims=True)
    return centered / sqrt(variance + epsilon) * gain + bias


class LayerNorm(Function):
    """`layer_norm_by_autograd`: y = u gain + bias with u = (x - mean) / √(variance + ε)."""

    expects = "x (..., n), gain (n,), bias (n,)"

    def flops(ctx, out, x, gain, bias):
        n, num_rows = out.size, out.size // gain.size
        return 7 * n + 5 * num_rows, [8 * n + 2 * num_rows, 2 * n, n]

    def forward(ctx, x, gain, bias, epsilon):
        n = x.shape[-1]
        if gain.shape != (n,) or bias.shape != (n,):
            raise ValueError(f"x has rows of {n} elements")
        unit = x - row_sum(x) / n
        scale = 1 / np.sqrt(row_dot(unit, unit) / n + epsilon)
        unit *= scale
        ctx.save(unit, scale, gain)
        y = unit * gain
        y += bias
        return y

    def backward(ctx, g):
        # With d = g gain:  dx = (d - mean(d) - u mean(d u)) / √(variance + ε),
        # dgain = Σ g u, dbias = Σ g over all rows
        unit, scale, gain = ctx.saved

        def dx():
            u, n = unit(), g.shape[-1]
            d = g * gain()
            along = row_dot(d, u) / n
            d -= row_sum(d) / n
            d -= u * along
            d *= scale()
            return d
        return [dx, lambda: np.einsum("ni,ni->i", as_rows(g), as_rows(unit())),
                lambda: np.einsum("ni->i", as_rows(g))]


def rms_norm_by_autograd(x: Tensor, gain: Tensor, epsilon: float = 1e-5) -> Tensor:
    """x / √(mean(x²) + ε) gain, over the last axis.  Zhang & Sennrich 2019, equation 4."""
    return x / sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


class RMSNorm(Function):
    """`rms_norm_by_autograd`: y = u gain with u = x / √(mean(x²) + ε)."""

    expects = "x (..., n), gain (n,)"

    def flops(ctx, out, x, gain):
        n, num_rows = out.size, out.size // gain.size
        return 4 * n + 4 * num_rows, [6 * n + num_rows, 2 * n]

    def forward(ctx, x, gain, epsilon):
        n = x.shape[-1]
        if gain.shape != (n,):
            raise ValueError(f"x has rows of {n} elements")
        scale = 1 / np.sqrt(row_dot(x, x) / n + epsilon)
        unit = x * scale
        ctx.save(unit, scale, gain)
        return unit * gain

    def backward(ctx, g):
        # With d = g gain:  dx = (d - u mean(d u)) / √(mean(x²) + ε),  dgain = Σ g u over all rows
        unit, scale, gain = ctx.saved

        def dx():
            u = unit()
            d = g * gain()
            d -= u * (row_dot(d, u) / g.shape[-1])
            d *= scale()
            return d
        return [dx, lambda: np.einsum("ni,ni->i", as_rows(g), as_rows(unit()))]


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """x (..., n), every row brought to mean 0 and variance 1, then times gain plus bias (n,)."""
    return LayerNorm.apply(x, gain, bias, epsilon=epsilon)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float = 1e-5) -> Tensor:
    """x (..., n), every row divided by its root mean square, then times gain (n,)."""
    return RMSNorm.apply(x, gain, epsilon=epsilon)
