"""Views and the storage behind them: which array owns the memory, and where in it a view lies.

    storage  [ · · · ▒ ▒ ▒ ▒ · · ]      ViewSpec: shape; offset and strides in bytes
                     └ view

A strategy or an offloader that moves a storage rebuilds the views of it elsewhere.
"""

from typing import NamedTuple

import numpy as np

from .arrays import Array, is_gpu, is_host


class ViewSpec(NamedTuple):
    """The place of a view in its base: offset and strides in bytes.  Its dtype may differ."""

    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def storage(array: Array) -> Array:
    """The array that owns the memory that `array` is a view of."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def flat_view(owner: Array) -> Array:
    """The whole memory of an array that owns it, as a view (n,) in the order of memory."""
    order = sorted(range(owner.ndim), key=lambda axis: -owner.strides[axis])
    return owner.transpose(order).reshape(owner.size)


def view_spec(view: Array, base: Array) -> ViewSpec | None:
    """The place of `view` in the contiguous `base`; None if they do not share a storage.

    `view_from_spec(base, spec)` is the inverse.
    """
    if storage(view) is not storage(base):
        return None
    return ViewSpec(view.dtype, _address(view) - _address(base), view.shape, view.strides)


def view_from_spec(base: Array, spec: ViewSpec) -> Array:
    """The view of `base` that `view_spec` described."""
    dtype, offset, shape, strides = spec
    if not (is_host(base) or is_gpu(base)):
        return base.view_at(spec, dtype)
    tail = base.reshape(base.size)[offset // base.itemsize:].view(dtype)
    if is_gpu(base):
        import cupy
        return cupy.lib.stride_tricks.as_strided(tail, shape, strides)
    return np.ndarray(shape, dtype, tail, strides=strides)     # as_strided would hide the owner


def _address(array: Array) -> int:
    if is_host(array):
        return array.__array_interface__["data"][0]
    return array.data.ptr if is_gpu(array) else array.offset
