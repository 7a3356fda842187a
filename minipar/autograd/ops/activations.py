"""Non-linearities, softmax and dropout; g stands for dL/dy."""

import math

import numpy as np

from ...backend import Array, as_rows, keep_where, l2_blocks, row_dot, row_sum
from ..function import Function
from ..tensor import Tensor


class Relu(Function):
    """y = max(x, 0);  dx = g where x > 0.  Saves y rather than x: the next layer saves y too."""

    flops_per_element = 1, 0

    def forward(ctx, x):
        y = np.maximum(x, 0)
        ctx.save(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved
        return [lambda: keep_where(y() > 0, g)]


class Tanh(Function):
    """y = tanh x;  dx = g (1 - y²)."""

    flops_per_element = 1, 3

    def forward(ctx, x):
        y = np.tanh(x)
        ctx.save(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved
        return [lambda: g * (1 - np.square(y()))]


class Gelu(Function):
    """y = x p with p = (1 + tanh u) / 2, u = a x + b x³, a = √(2/π), b = 0.044715 a.

    Hendrycks & Gimpel 2016, equation 2 (the tanh form).  Saves its derivative
    p + x dp/dx = p + 2 y (1 - p) (a + 3 b x²) rather than x.  That is one array either way, and
    backward needs no second tanh.
    """

    def flops(ctx, out, x):
        return (14 if ctx.needs_grad[0] else 8) * out.size, [out.size]

    def forward(ctx, x):
        a = math.sqrt(2 / math.pi)
        b = 0.044715 * a
        need_slope = ctx.needs_grad[0]
        if not x.ndim:
            raise ValueError("gelu of a 0-d tensor: give it at least one axis")
        y = np.empty_like(x, order="C")
        slope = np.empty_like(x, order="C") if need_slope else x
        for x_, y_, slope_ in l2_blocks(as_rows(x), as_rows(y), as_rows(slope)):
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

    def backward(ctx, g):
        (slope,) = ctx.saved
        return [lambda: g * slope()]


class SwiGLU(Function):
    """y = silu(gate) up, with silu(x) = x s and s = 1 / (1 + e⁻ˣ) = (1 + tanh(x/2)) / 2.

    Shazeer 2020, equation 6.  Saves both derivatives, rather than gate and up: dgate = g · up
    (s + x s (1 - s)), dup = g · silu(gate).
    """

    expects = "gate and up of the same shape (..., n)"

    def flops(ctx, out, gate, up):
        return (10 if any(ctx.needs_grad) else 6) * out.size, [out.size, out.size]

    def forward(ctx, gate, up):
        if gate.shape != up.shape or not gate.ndim:
            raise ValueError("gate and up differ in shape, or have no axis")
        y = np.empty_like(gate, order="C")
        need_slopes = any(ctx.needs_grad)
        slope, silu = (np.empty_like(gate, order="C") if need_slopes else gate for _ in range(2))
        for x_, up_, y_, slope_, silu_ in l2_blocks(*map(as_rows, (gate, up, y, slope, silu))):
            s = x_ * 0.5
            np.tanh(s, out=s)
            s *= 0.5
            s += 0.5
            if not need_slopes:
                s *= x_
                np.multiply(s, up_, out=y_)
                continue
            np.multiply(x_, s, out=silu_)
            np.multiply(silu_, up_, out=y_)
            np.subtract(1, s, out=slope_)
            slope_ *= silu_
            slope_ += s
            slope_ *= up_
        ctx.save(slope, silu)
        return y

    def backward(ctx, g):
        slope, silu = ctx.saved
        return [lambda: g * slope(), lambda: g * silu()]


class Dropout(Function):
    """y = x keep / (1 - rate) with a mask of booleans;  dx = g keep / (1 - rate)."""

    expects = "x and a boolean mask that broadcasts to it"
    flops_per_element = 1, 1, 0

    def forward(ctx, x, keep, rate):
        if keep.dtype.kind != "b" or np.broadcast_shapes(x.shape, keep.shape) != x.shape:
            raise ValueError("the mask has other elements than booleans, or more than x")
        ctx.save(keep)
        ctx.scale = 1 / (1 - rate)
        return keep_where(keep, x) * ctx.scale

    def backward(ctx, g):
        (keep,), scale = ctx.saved, ctx.scale
        return [lambda: keep_where(keep(), g) * scale, None]


class Softmax(Function):
    """y = exp(x - max) / Σ exp(x - max) over the last axis."""

    flops_per_element = 5, 4

    def forward(ctx, x):
        y = x - np.max(x, axis=-1, keepdims=True)
        np.exp(y, out=y)
        y /= row_sum(y)
        ctx.save(y)
        return y

    def backward(ctx, g):
        # dx = y (g - Σ g y)
        (y,) = ctx.saved

        def dx():
            p = y()
            d = g - row_dot(g, p)
            d *= p
            return d
        return [dx]


class LogSoftmax(Function):
    """y = x - max - ln Σ exp(x - max) over the last axis;  dx = g - eʸ Σ g."""

    def flops(ctx, out, x):
        return 5 * out.size + out.size // out.shape[-1], [4 * out.size]

    def forward(ctx, x):
        y = x - np.max(x, axis=-1, keepdims=True)
        y -= np.log(row_sum(np.exp(y)))
        ctx.save(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved

        def dx():
            d = np.exp(y())
            d *= row_sum(g)
            return np.subtract(g, d, out=d)
        return [dx]


def relu(x: Tensor) -> Tensor:
    """max(x, 0), element by element."""
    return Relu.apply(x)


def tanh(x: Tensor) -> Tensor:
    """tanh x, element by element."""
    return Tanh.apply(x)


def gelu(x: Tensor) -> Tensor:
    """The tanh form of the Gaussian error linear unit, of x (..., n)."""
    return Gelu.apply(x)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) times up, element by element, of gate and up (..., n)."""
    return SwiGLU.apply(gate, up)


def dropout(x: Tensor, keep: Array, rate: float) -> Tensor:
    """x with the elements where `keep` is False set to 0, the others scaled by 1 / (1 - rate)."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate {rate} is not in [0, 1)")
    return Dropout.apply(x, keep, rate=rate)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis."""
    return Softmax.apply(x)


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of softmax over the last axis."""
    return LogSoftmax.apply(x)
