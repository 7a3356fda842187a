"""Padding: pieces of equal length, for a message, where a dimension does not divide.

    6 elements over 4 ranks     rank 0  a b     rank 1  c d     rank 2  e f     rank 3  · ·

No operation computes with padding, except lookups in a cut vocabulary, which leave it out of the
result.  So no NaN from a logarithm or a norm of padding reaches a gradient.  Pad and Strip are
conjugate to each other, as are the two directions of Reorder.
"""

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array, asarray_like


def along(dim: int, part: slice) -> tuple[slice, ...]:
    """The index of a part of one dimension."""
    return (*[slice(None)] * dim, part)


def zeros_of(x: Array, dim: int, length: int) -> Array:
    """Zeros of the shape of x, but of this length along `dim`."""
    return np.zeros((*x.shape[:dim], length, *x.shape[dim + 1:]), x.dtype, like=x)


def padded(x: Array, dim: int, length: int) -> Array:
    """A copy of x with zeros behind, of this length along `dim`."""
    y = zeros_of(x, dim, length)
    y[along(dim, slice(x.shape[dim]))] = x
    return y


class Pad(Function):
    """x with zeros behind;  dx = g without them."""

    metered = False

    @staticmethod
    def forward(ctx, x, dim, length):
        ctx.dim, ctx.length = dim, x.shape[dim]
        return padded(x, dim, length)

    @staticmethod
    def backward(ctx, g):
        part = along(ctx.dim, slice(ctx.length))
        return [lambda: g[part]]


class Strip(Function):
    """The first `length` elements along `dim`;  dx = g with zeros behind."""

    metered = False

    @staticmethod
    def forward(ctx, x, dim, length):
        ctx.dim, ctx.length = dim, x.shape[dim]
        return x[along(dim, slice(length))]

    @staticmethod
    def backward(ctx, g):
        dim, length = ctx.dim, ctx.length
        return [lambda: padded(g, dim, length)]


class Reorder(Function):
    """x with its last dimension in a different order;  dx = g in the old order."""

    metered = False

    @staticmethod
    def forward(ctx, x, order):
        ctx.inverse = np.argsort(order)
        return np.take(x, asarray_like(order, x), axis=-1)

    @staticmethod
    def backward(ctx, g):
        inverse = ctx.inverse
        return [lambda: np.take(g, asarray_like(inverse, g), axis=-1)]


def pad_to(x: Tensor, dim: int, length: int) -> Tensor:
    """x padded to `length`, or x itself if it is as long."""
    return x if x.shape[dim] == length else Pad.apply(x, dim=dim, length=length)


def strip_to(x: Tensor, dim: int, length: int) -> Tensor:
    """x without its padding, or x itself if it has none."""
    return x if x.shape[dim] == length else Strip.apply(x, dim=dim, length=length)


def pad(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x padded to `shape`."""
    for dim, length in enumerate(shape):
        x = pad_to(x, dim, length)
    return x


def strip(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements of x within `shape`, without its padding."""
    for dim, length in enumerate(shape):
        x = strip_to(x, dim, length)
    return x


def by_piece(sections: tuple[int, ...], num_pieces: int) -> np.ndarray:
    """The order of a dimension of sections that puts the elements of each rank's piece together.

    [q | k | v] becomes q₀ k₀ v₀ q₁ k₁ v₁ …
    """
    columns = np.split(np.arange(sum(sections)), np.cumsum(sections)[:-1])
    return np.concatenate([np.split(part, num_pieces)[rank]
                           for rank in range(num_pieces) for part in columns])
