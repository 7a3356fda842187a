"""Sums, means and maxima over axes."""

import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ...backend import keep_where
from ..function import Function
from ..tensor import Tensor

Axes = int | tuple[int, ...] | None


def _expand(g, axis, keepdims):
    """A reduced gradient with its reduced axes back, of length 1."""
    return g if axis is None or keepdims else np.expand_dims(g, axis)


class Sum(Function):
    """y = Σ x over some axes;  dx = g, spread over them."""

    def flops(ctx, out, x):
        return x.size, [0]

    def forward(ctx, x, axis=None, keepdims=False):
        ctx.shape, ctx.axis, ctx.keepdims = x.shape, axis, keepdims
        return np.sum(x, axis=axis, keepdims=keepdims)

    def backward(ctx, g):
        shape, g = ctx.shape, _expand(g, ctx.axis, ctx.keepdims)
        return [lambda: np.broadcast_to(g, shape)]


class Max(Function):
    """y = max x over some axes;  dx = g at the maximum, shared evenly where several are equal.

    A NaN counts as the maximum.
    """

    def flops(ctx, out, x):
        return x.size, [out.size]

    def forward(ctx, x, axis=None, keepdims=False):
        kept = np.max(x, axis=axis, keepdims=True)
        ctx.save((x == kept) | np.isnan(x))
        ctx.axis, ctx.keepdims = axis, keepdims
        return kept if keepdims else np.squeeze(kept, axis)

    def backward(ctx, g):
        (at_max,), axis, g = ctx.saved, ctx.axis, _expand(g, ctx.axis, ctx.keepdims)

        def dx():
            where = at_max()
            count = np.sum(where, axis=axis, keepdims=True)     # an integer: float16 ends at 65504
            return keep_where(where, (g / count).astype(g.dtype))
        return [dx]


def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Σ x over `axis` (an int, several, or None for all)."""
    return Sum.apply(x, axis=axis, keepdims=keepdims)


def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean of x over `axis` (an int, several, or None for all)."""
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim, "mean: axis")
    count = math.prod(x.shape[a] for a in axes)
    if not count:
        raise ValueError(f"mean: no elements along axis {axis} of shape {x.shape}")
    return sum(x, axis, keepdims) * (1 / count)


def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The maximum of x over `axis` (an int, several, or None for all)."""
    return Max.apply(x, axis=axis, keepdims=keepdims)
