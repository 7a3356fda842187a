"""Operations on one element at a time, and arithmetic with broadcasting.

Each class holds an operation and its derivative, g standing for dL/dy.  Scalars stay Python floats,
so that float32 stays float32 (NEP 50).
"""

import math

import numpy as np

from ...backend import Array, keep_where
from ..function import Function
from ..tensor import Tensor

BROADCAST = "shapes that broadcast: equal, or 1, axis by axis from the right"


def unbroadcast(grad: Array, shape: tuple[int, ...]) -> Array:
    """Sum `grad` over the axes that broadcasting added to or stretched from `shape`."""
    if grad.shape == shape:
        return grad
    added = grad.ndim - len(shape)
    axes = tuple(i for i in range(grad.ndim) if i < added or shape[i - added] == 1)
    return np.sum(grad, axis=axes).reshape(shape)


def unbroadcast_flops(grad_shape: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """FLOPs of `unbroadcast`: its sum, if there is one, reads the whole gradient."""
    return 0 if grad_shape == shape else math.prod(grad_shape)


class Broadcast(Function):
    """Base of the operations whose inputs broadcast: gradients are summed to the inputs' shapes."""

    expects = BROADCAST

    def flops(ctx, out, *arrays):
        forward, gradients = super().flops(out, *arrays)
        return forward, [each + unbroadcast_flops(out.shape, np.shape(array))
                         for each, array in zip(gradients, arrays)]


class Add(Broadcast):
    """y = a + b;  da = g, db = g."""

    flops_per_element = 1, 0

    def forward(ctx, a, b):
        ctx.shapes = np.shape(a), np.shape(b)
        return a + b

    def backward(ctx, g):
        return [lambda s=s: unbroadcast(g, s) for s in ctx.shapes]


class Subtract(Broadcast):
    """y = a - b;  da = g, db = -g."""

    flops_per_element = 1, 0, 1

    def forward(ctx, a, b):
        ctx.shapes = np.shape(a), np.shape(b)
        return a - b

    def backward(ctx, g):
        a_shape, b_shape = ctx.shapes
        return [lambda: unbroadcast(g, a_shape), lambda: unbroadcast(-g, b_shape)]


class Multiply(Broadcast):
    """y = a b;  da = g b, db = g a."""

    def forward(ctx, a, b):
        need_a, need_b = ctx.needs_grad
        ctx.shapes = np.shape(a), np.shape(b)
        ctx.save(a if need_b else None, b if need_a else None)
        return a * b

    def backward(ctx, g):
        (a, b), (a_shape, b_shape) = ctx.saved, ctx.shapes
        return [lambda: unbroadcast(g * b(), a_shape), lambda: unbroadcast(g * a(), b_shape)]


class Divide(Broadcast):
    """y = a / b;  da = g / b, db = -g a / b²."""

    flops_per_element = 1, 1, 4

    def forward(ctx, a, b):
        ctx.shapes = np.shape(a), np.shape(b)
        ctx.save(a if ctx.needs_grad[1] else None, b)
        return a / b

    def backward(ctx, g):
        (a, b), (a_shape, b_shape) = ctx.saved, ctx.shapes

        def db():
            divisor = b()
            return unbroadcast(-g * a() / divisor / divisor, b_shape)
        return [lambda: unbroadcast(g / b(), a_shape), db]


class Power(Function):
    """y = xᵖ for a number p;  dx = g p xᵖ⁻¹."""

    def flops(ctx, out, x):
        return out.size, [3 * out.size if ctx.p else 0]

    def forward(ctx, x, p):
        ctx.save(x)
        ctx.p = p
        return x**p

    def backward(ctx, g):
        (x,), p = ctx.saved, ctx.p
        if not p:
            return [lambda: np.zeros_like(g)]       # 0 · x⁻¹ would be NaN at 0
        return [lambda: g * (p * x() ** (p - 1))]


class Exp(Function):
    """y = eˣ;  dx = g y."""

    def forward(ctx, x):
        y = np.exp(x)
        ctx.save(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved
        return [lambda: g * y()]


class Log(Function):
    """y = ln x;  dx = g / x."""

    def forward(ctx, x):
        ctx.save(x)
        return np.log(x)

    def backward(ctx, g):
        (x,) = ctx.saved
        return [lambda: g / x()]


class Sqrt(Function):
    """y = √x;  dx = g / (2 y)."""

    flops_per_element = 1, 2

    def forward(ctx, x):
        y = np.sqrt(x)
        ctx.save(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved
        return [lambda: g / (2 * y())]


class Where(Broadcast):
    """y = a where condition, else b;  da = g where condition, db = g elsewhere."""

    flops_per_element = 0, 0

    def forward(ctx, condition, a, b):
        if not hasattr(condition, "dtype") or condition.dtype.kind != "b":
            raise TypeError("the condition is an array of booleans")
        ctx.shapes = np.shape(a), np.shape(b)
        ctx.save(condition)
        return np.where(condition, a, b)

    def backward(ctx, g):
        (condition,), (a_shape, b_shape) = ctx.saved, ctx.shapes
        return [None, lambda: unbroadcast(keep_where(condition(), g), a_shape),
                lambda: unbroadcast(keep_where(~condition(), g), b_shape)]


class AsType(Function):
    """The same numbers in a different dtype;  dx = g in the dtype of x."""

    flops_per_element = 0, 0

    def forward(ctx, x, dtype):
        ctx.dtype = x.dtype
        return x.astype(dtype)

    def backward(ctx, g):
        dtype = ctx.dtype
        return [lambda: g.astype(dtype)]


def exp(x: Tensor) -> Tensor:
    """eˣ, element by element."""
    return Exp.apply(x)


def log(x: Tensor) -> Tensor:
    """ln x, element by element."""
    return Log.apply(x)


def sqrt(x: Tensor) -> Tensor:
    """√x, element by element."""
    return Sqrt.apply(x)


def where(condition: Array, a: Tensor, b: Tensor) -> Tensor:
    """`a` where the boolean `condition` holds, `b` elsewhere."""
    return Where.apply(condition, a, b)


def astype(x: Tensor, dtype: np.dtype) -> Tensor:
    """x converted to the floating-point `dtype`."""
    return AsType.apply(x, dtype=dtype)
