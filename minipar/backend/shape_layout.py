"""The shapes and strides of arrays and their views, computed without an array.

    layout of x             shape (4, 6)      strides (24, 4), in bytes
    x.T                           (6, 4)              (4, 24)
    x[1:, None, ::2]              (3, 1, 3)           (24, 0, 8)
    x.reshape(2, 12)              (2, 12)             (48, 4)

The rules are NumPy's, computed in Python's integers.  NumPy itself refuses an array of more bytes
than it can address, also one that is never allocated: 2 GiB on 32-bit machines and in WebAssembly.
"""

import math
import operator
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

Shape = tuple[int, ...]


class StridedLayout(NamedTuple):
    """The shape of an array, and for each axis the bytes from one element to the next.

    `offset`: where a view begins in the array that it is a view of, in bytes.
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    def axes(self) -> list[tuple[int, int]]:
        """(length, stride) of each axis."""
        return list(zip(self.shape, self.strides))


class Flags(NamedTuple):
    """The part of ndarray.flags that depends on the layout."""

    c_contiguous: bool
    f_contiguous: bool
    writeable = False           # there are no numbers


def of_axes(axes: Sequence[tuple[int, int]], offset: int = 0) -> StridedLayout:
    """The layout whose axes have these (length, stride)."""
    return StridedLayout(tuple([n for n, _ in axes]), tuple([stride for _, stride in axes]), offset)


def in_order(shape: Shape, itemsize: int) -> StridedLayout:
    """The layout of a new array, which is C-contiguous."""
    strides = [itemsize * math.prod(shape[i + 1:]) for i in range(len(shape))]
    return StridedLayout(shape, tuple(strides))


def flags(layout: StridedLayout, itemsize: int) -> Flags:
    """The flags: True if the elements lie one after the other, in C order or in Fortran order."""
    def follow(axes: list[tuple[int, int]]) -> bool:
        step = itemsize
        for n, stride in axes:
            if n != 1 and stride != step:
                return False
            step *= n
        return True
    if 0 in layout.shape:
        return Flags(True, True)
    return Flags(follow(layout.axes()[::-1]), follow(layout.axes()))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """np.broadcast_shapes: aligned from the right, axes of length 1 are stretched."""
    result = []
    for sizes in zip_longest(*[shape[::-1] for shape in shapes], fillvalue=1):
        longer = {n for n in sizes if n != 1} or {1}
        if len(longer) > 1:
            raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not broadcast together")
        result.append(longer.pop())
    return tuple(result[::-1])


def picks_elements(index: tuple, ndim: int) -> bool:
    """True if `index` is an array of integers for each axis: x[rows, columns]."""
    return len(index) == ndim > 1 and all(map(is_integers, index))


def is_integers(part: Any) -> bool:
    """True for an array of integers that has an axis."""
    return getattr(part, "dtype", np.dtype(bool)).kind in "iu" and bool(part.shape)


def index(layout: StridedLayout, parts: tuple) -> StridedLayout:
    """The layout of x[parts]: integers, slices, None and at most one Ellipsis."""
    num_axes = sum(part is not None and part is not Ellipsis for part in parts)
    if num_axes > len(layout.shape):
        raise IndexError(f"{num_axes} indices into an array of shape {layout.shape}")
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    axes, found, offset = layout.axes(), [], 0
    for part in parts:
        if part is None:
            found.append((1, 0))
        elif part is Ellipsis:
            middle = len(layout.shape) - num_axes
            found += axes[:middle]
            del axes[:middle]
        else:
            n, stride = axes.pop(0)
            if isinstance(part, slice):
                start, stop, step = part.indices(n)
                found.append((max(0, -((start - stop) // step)), stride * step))
            elif not -n <= part < n:
                raise IndexError(f"index {part} is out of bounds for an axis of length {n}")
            else:
                start = part % n
            offset += start * stride
    return of_axes(found + axes, offset)


def transpose(layout: StridedLayout, axes: Any = None) -> StridedLayout:
    """The axes in the order `axes`; reversed without it."""
    ndim = len(layout.shape)
    order = range(ndim)[::-1] if axes is None else normalize_axis_tuple(axes, ndim)
    if len(order) != ndim:
        raise ValueError(f"axes {axes} do not name each of {ndim} axes once")
    return of_axes([layout.axes()[axis] for axis in order])


def swapaxes(layout: StridedLayout, axis1: int, axis2: int) -> StridedLayout:
    """np.swapaxes."""
    order = list(range(len(layout.shape)))
    first, second = (normalize_axis_index(axis, len(order)) for axis in (axis1, axis2))
    order[first], order[second] = second, first
    return transpose(layout, order)


def moveaxis(layout: StridedLayout, source: Any, destination: Any) -> StridedLayout:
    """np.moveaxis."""
    ndim = len(layout.shape)
    froms, to = normalize_axis_tuple(source, ndim), normalize_axis_tuple(destination, ndim)
    if len(froms) != len(to):
        raise ValueError(f"{len(froms)} axes to move, but {len(to)} places")
    order = [axis for axis in range(ndim) if axis not in froms]
    for place, axis in sorted(zip(to, froms)):
        order.insert(place, axis)
    return transpose(layout, order)


def expand_dims(layout: StridedLayout, axis: Any) -> StridedLayout:
    """np.expand_dims."""
    axis = axis if isinstance(axis, tuple | list) else (axis,)
    axes = layout.axes()
    for place in sorted(normalize_axis_tuple(axis, len(axes) + len(axis))):
        axes.insert(place, (1, 0))
    return of_axes(axes)


def squeeze(layout: StridedLayout, axis: Any = None) -> StridedLayout:
    """np.squeeze."""
    ndim = len(layout.shape)
    gone = {i for i in range(ndim) if layout.shape[i] == 1} if axis is None else set(
        normalize_axis_tuple(axis, ndim))
    if any(layout.shape[i] != 1 for i in gone):
        raise ValueError(f"axes {sorted(gone)} of shape {layout.shape} are not all of length 1")
    return of_axes([axis for i, axis in enumerate(layout.axes()) if i not in gone])


def broadcast_to(layout: StridedLayout, shape: Any, subok: bool = False) -> StridedLayout:
    """np.broadcast_to: stretched axes have stride 0."""
    shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if broadcast_shapes(layout.shape, shape) != shape:
        raise ValueError(f"shape {layout.shape} does not broadcast to {shape}")
    axes = [(1, 0)] * (len(shape) - len(layout.shape)) + layout.axes()
    return of_axes([(n, stride if length == n else 0) for n, (length, stride) in zip(shape, axes)])


def flip(layout: StridedLayout, axis: Any = None) -> StridedLayout:
    """np.flip."""
    ndim = len(layout.shape)
    turned = range(ndim) if axis is None else normalize_axis_tuple(axis, ndim)
    offset = sum((n - 1) * stride for i, (n, stride) in enumerate(layout.axes()) if i in turned)
    return of_axes([(n, -stride if i in turned else stride)
                    for i, (n, stride) in enumerate(layout.axes())], offset)


def split(layout: StridedLayout, sections: Any, axis: int = 0) -> list[StridedLayout]:
    """np.split: into equal parts, or before each of the given places."""
    axis = normalize_axis_index(axis, len(layout.shape))
    if not np.ndim(sections) and layout.shape[axis] % operator.index(sections):
        raise ValueError(f"an axis of length {layout.shape[axis]} does not split into {sections} "
                         "equal parts")
    return array_split(layout, sections, axis)


def array_split(layout: StridedLayout, sections: Any, axis: int = 0) -> list[StridedLayout]:
    """np.array_split: the first parts may be longer by one."""
    axis = normalize_axis_index(axis, len(layout.shape))
    n = layout.shape[axis]
    if np.ndim(sections):
        cuts = [0, *map(operator.index, sections), n]
    elif sections < 1:
        raise ValueError(f"at least 1 part is expected, not {sections}")
    else:
        cuts = [i * (n // sections) + min(i, n % sections) for i in range(sections + 1)]
    return [index(layout, (*[slice(None)] * axis, slice(*cut))) for cut in zip(cuts, cuts[1:])]


VIEWS: dict[Callable, Callable] = {
    np.transpose: transpose, np.swapaxes: swapaxes, np.moveaxis: moveaxis,
    np.expand_dims: expand_dims, np.squeeze: squeeze, np.broadcast_to: broadcast_to,
    np.split: split, np.array_split: array_split, np.flip: flip}


def completed(shape: Shape, size: int) -> Shape:
    """The shape of a reshape of `size` elements, its -1 replaced."""
    known = math.prod([n for n in shape if n != -1])
    if shape.count(-1) == 1 and known and size % known == 0:
        shape = tuple([size // known if n == -1 else n for n in shape])
    if math.prod(shape) != size or any(n < 0 for n in shape):
        raise ValueError(f"cannot reshape an array of {size} elements into shape {shape}")
    return shape


def reshape(layout: StridedLayout, shape: Shape, itemsize: int) -> StridedLayout | None:
    """A view of the complete `shape`; None where the elements are not in the right order."""
    if 0 in shape:
        return in_order(shape, itemsize)
    blocks: list[tuple[int, int]] = []          # runs of evenly spaced elements: (number, stride)
    for n, stride in layout.axes():
        if blocks and blocks[-1][1] == n * stride:
            blocks[-1] = (blocks[-1][0] * n, stride)
        elif n != 1:
            blocks.append((n, stride))
    left, step, strides = 1, itemsize, []
    for n in reversed(shape):                   # each axis takes some of the last block
        if left == 1 and n != 1:
            left, step = blocks.pop()
        if left % n:
            return None
        strides.append(step)
        left, step = left // n, step * n
    return StridedLayout(shape, tuple(strides[::-1]))


def cast(layout: StridedLayout, old: int, new: int) -> StridedLayout:
    """The same bytes as elements of `new` bytes instead of `old`."""
    if old == new:
        return layout
    lies_ready = layout.shape and (layout.strides[-1] == old or layout.shape[-1] == 1
                                   or 0 in layout.shape)
    if not lies_ready or layout.shape[-1] * old % new:
        raise ValueError(f"elements of {old} bytes in shape {layout.shape} cannot be read as "
                         f"elements of {new} bytes: the last axis must be contiguous and divide")
    return StridedLayout((*layout.shape[:-1], layout.shape[-1] * old // new),
                         (*layout.strides[:-1], new))
