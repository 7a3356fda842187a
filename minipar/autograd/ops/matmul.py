"""Matrix products: where nearly all the FLOPs of a model are, 2 for each multiply-add."""

import numpy as np

from ...backend import Array, as_rows
from ..function import Function
from ..tensor import Tensor
from .elementwise import unbroadcast, unbroadcast_flops


class MatMul(Function):
    """y = a b, over broadcast leading axes."""

    expects = "(..., n, k) @ (..., k, m), the inner sizes k equal, the leading axes broadcasting"

    def flops(ctx, out, a, b):
        products, leading = 2 * out.size * a.shape[-1], out.shape[:-2]
        return products, [products + unbroadcast_flops((*leading, *x.shape[-2:]), x.shape)
                          for x in (a, b)]

    def forward(ctx, a, b):
        if np.ndim(a) < 2 or np.ndim(b) < 2:
            raise ValueError("both need at least two axes: reshape a vector to (1, n) or (n, 1)")
        ctx.shapes = a.shape, b.shape
        ctx.save(a if ctx.needs_grad[1] else None, b if ctx.needs_grad[0] else None)
        ctx.stop_if_requested()
        return a @ b

    def backward(ctx, g):
        # da = g bᵀ, db = aᵀ g
        (a, b), (a_shape, b_shape) = ctx.saved, ctx.shapes
        return [lambda: unbroadcast(g @ b().swapaxes(-1, -2), a_shape),
                lambda: unbroadcast(a().swapaxes(-1, -2) @ g, b_shape)]


class Linear(Function):
    """y = x w + bias.

    x (..., in), w (in, out), bias (out,) or None.  One 2-D product whatever the leading axes are.
    """

    expects = "x (..., in), weight (in, out), bias (out,)"

    def flops(ctx, out, x, w, bias):
        products, bias_sum = 2 * out.size * x.shape[-1], 0 if bias is None else out.size
        return products + bias_sum, [products, products, bias_sum]

    def forward(ctx, x, w, bias):
        (need_x, need_w, _), ctx.has_bias = ctx.needs_grad, bias is not None
        if w.ndim != 2 or x.shape[-1] != w.shape[0] or bias is not None \
                and bias.shape != w.shape[1:]:
            raise shape_error(x, w, bias)
        ctx.save(x if need_w else None, w if need_x else None)
        ctx.stop_if_requested()
        y = as_rows(x) @ w
        if bias is not None:
            y += bias
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], w.shape[1])

    def backward(ctx, g):
        # dx = g wᵀ, dw = xᵀ g, dbias = Σ g over the rows
        x, w = ctx.saved
        leading, g = g.shape[:-1], as_rows(g)

        def dx():
            y = g @ w().T
            return y if len(leading) == 1 else y.reshape(*leading, y.shape[1])
        return [dx, lambda: as_rows(x()).T @ g, lambda: g.sum(axis=0)]


def shape_error(x: Array, w: Array, bias: Array | None) -> ValueError:
    """The error for arrays that `Linear` cannot multiply and add."""
    if w.ndim != 2 or x.shape[-1] != w.shape[0]:
        return ValueError(f"the last axis of x has {x.shape[-1]} elements, the weight takes "
                          f"{w.shape[0]}")
    return ValueError(f"the bias has shape {bias.shape}, the weight gives {w.shape[1:]}")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a (..., n, k) @ b (..., k, m) → (..., n, m)."""
    return MatMul.apply(a, b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) weight (in, out) + bias (out,) → (..., out)."""
    return Linear.apply(x, weight, bias)
