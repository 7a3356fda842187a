"""Operations that move elements: shapes, axes, slices, pieces.  They compute only in backward."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ...backend import add_at, is_host
from ..function import Function
from ..saved import unchanging
from ..tensor import Tensor
from .elementwise import Broadcast, unbroadcast


class _View(Function):
    """Base of the operations that return a view (reshape copies where it must): not metered."""

    metered = False


class Reshape(_View):
    """The same elements in a different shape;  dx = g in the shape of x."""

    expects = "a shape with as many elements (one of its sizes may be -1)"

    def forward(ctx, x, shape):
        ctx.shape = x.shape
        return x.reshape(shape)

    def backward(ctx, g):
        shape = ctx.shape
        return [lambda: g.reshape(shape)]


class Transpose(_View):
    """Axes in a different order;  dx = g with the order undone."""

    expects = "each axis named once"

    def forward(ctx, x, axes):
        y = x.transpose(axes)
        axes = [a % x.ndim for a in axes]
        ctx.inverse = sorted(range(x.ndim), key=axes.__getitem__)
        return y

    def backward(ctx, g):
        inverse = ctx.inverse
        return [lambda: g.transpose(inverse)]


class BroadcastTo(Broadcast):
    """x repeated along new or stretched axes;  dx = Σ g over them."""

    flops_per_element = 0, 0
    expects = "a shape that x broadcasts to"

    def forward(ctx, x, shape):
        ctx.shape = x.shape
        return np.broadcast_to(x, shape)

    def backward(ctx, g):
        shape = ctx.shape
        return [lambda: unbroadcast(g, shape)]


class GetItem(Function):
    """y = x[index];  dx = g at the index (added up where it takes an element twice), else 0."""

    expects = "an index within the shape"

    def flops(ctx, out, x):
        return 0, [out.size if ctx.index is None else 0]

    def forward(ctx, x, index):
        parts = index if isinstance(index, tuple) else (index,)
        ctx.shape, ctx.index = x.shape, index
        if not all(part is None or part is Ellipsis or isinstance(part, int | slice | np.integer)
                   for part in parts):
            ctx.index = None                    # with arrays in it, which only save may keep
            ctx.save(*[unchanging(np.asarray(p) if isinstance(p, list) else p) for p in parts])
        return x[index]

    def backward(ctx, g):
        shape, index, saved = ctx.shape, ctx.index, ctx.saved

        def dx():
            d = np.zeros(shape, g.dtype, like=None if is_host(g) else g)   # g may be a number
            if saved:
                add_at(d, tuple([part() for part in saved]), g)
            else:                               # every element is taken at most once
                d[index] = g
            return d
        return [dx]


class Concatenate(Function):
    """Pieces one after the other along an axis;  each piece gets its part of g."""

    flops_per_element = 0, 0
    expects = "pieces whose shapes agree except along the axis"

    def forward(ctx, *pieces, axis):
        ctx.axis = axis % pieces[0].ndim
        ctx.sizes = [piece.shape[ctx.axis] for piece in pieces]
        return np.concatenate(pieces, axis=axis)

    def backward(ctx, g):
        ends = np.cumsum(ctx.sizes).tolist()
        before = (slice(None),) * ctx.axis
        return [lambda part=(*before, slice(end - size, end)): g[part]
                for size, end in zip(ctx.sizes, ends)]


def _as_tuple(numbers: tuple) -> tuple[int, ...]:
    """(2, 3) of f(2, 3) as well as of f((2, 3))."""
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], tuple | list) \
        else numbers


def reshape(x: Tensor, *shape: int | tuple[int, ...]) -> Tensor:
    """The elements of x in a different shape, given as numbers or as one tuple."""
    return Reshape.apply(x, shape=_as_tuple(shape))


def transpose(x: Tensor, *axes: int | tuple[int, ...]) -> Tensor:
    """x with its axes in the order `axes` (numbers or one tuple); reversed if none are given."""
    return Transpose.apply(x, axes=_as_tuple(axes) or tuple(reversed(range(x.ndim))))


def broadcast_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x repeated to `shape`."""
    return BroadcastTo.apply(x, shape=shape)


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]: integers, slices, or integer or boolean arrays."""
    return GetItem.apply(x, index=index)


def concatenate(pieces: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The pieces one after the other along `axis`."""
    return Concatenate.apply(*pieces, axis=axis)


def split(x: Tensor, num_pieces: int, axis: int = 0) -> list[Tensor]:
    """x cut into equal pieces along `axis`.  Raises ValueError if the length does not divide."""
    axis = normalize_axis_index(axis, x.ndim, "split")
    length = x.shape[axis]
    if num_pieces < 1 or length % num_pieces:
        raise ValueError(f"split: axis {axis} of length {length} does not divide into "
                         f"{num_pieces} equal pieces")
    step = length // num_pieces
    before = (slice(None),) * axis
    return [getitem(x, (*before, slice(i * step, (i + 1) * step))) for i in range(num_pieces)]
