"""The seam between NumPy and CuPy: the few places that NumPy's protocols do not reach.

Everywhere else the code calls `np.*` on whatever array comes: `np.exp(x)` of a CuPy array runs on
the GPU, and of a shape-only array (`shape_array.py`) only works out a shape.  The array decides.

This file also has the sums over rows, and passes over blocks, that many operations share.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any     # np.ndarray, cupy.ndarray or ShapeArray

# A chain of passes over blocks of 256 KiB stays in the L2 cache (flat from 128 KiB to 1 MiB).
BLOCK_BYTES = 1 << 18

_INTEGERS = {2: np.dtype("i2"), 4: np.dtype("i4"), 8: np.dtype("i8")}   # by their bytes
_HOST = (np.ndarray, np.generic, int, float, bool)


def is_host(array: Array) -> bool:
    """True if NumPy itself owns the numbers, so that Python code may look at them."""
    return isinstance(array, _HOST)


def is_gpu(array: Array) -> bool:
    """True if the numbers live on a CUDA device (a CuPy array)."""
    return hasattr(array, "__cuda_array_interface__")


def asarray_like(values: Any, array: Array) -> Array:
    """`values` (host numbers) on the device of `array`, keeping the dtype of `values`."""
    if is_host(array):
        return np.asarray(values)
    if is_gpu(array):
        import cupy
        return cupy.asarray(values)
    return np.asarray(values, like=array)


def to_host(array: Array) -> np.ndarray:
    """The numbers as a NumPy array; a copy only where they live elsewhere."""
    return array.get() if is_gpu(array) else np.asarray(array)


def to_float(number: Array) -> float:
    """A number of any library as a float, NaN if it is shape-only."""
    return float("nan") if hasattr(number, "new_array") else float(number)


def to_device_of(array: Array, other: Array) -> Array:
    """`array` itself if it lives where `other` does, on the host or on a GPU; else a copy there."""
    return array if is_gpu(array) == is_gpu(other) else asarray_like(to_host(array), other)


def l2_blocks(first: Array, *rest: Array) -> Iterator[tuple[Array, ...]]:
    """The same rows of each array, block by block: about `BLOCK_BYTES` of `first` at a time.

    Arrays on a GPU and shape-only arrays are one block: there, more blocks cost more than they
    save.
    """
    length = first.shape[0] if first.ndim else 0
    num_blocks = max(1, first.nbytes // BLOCK_BYTES) if is_host(first) else 1
    step = max(1, -(-length // num_blocks))
    for i in range(0, length, step):
        yield tuple(a[i:i + step] for a in (first, *rest))


def as_rows(x: Array) -> Array:
    """The array x (..., n) with all axes but the last joined: (rows, n)."""
    if x.ndim == 2:
        return x
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def row_sum(x: Array) -> Array:
    """Σ over the last axis, which is kept with length 1."""
    # einsum: on short rows 3 to 4 times as fast as np.sum
    return np.einsum("...i->...", x)[..., None]


def row_dot(x: Array, y: Array) -> Array:
    """Σ x y over the last axis, which is kept with length 1."""
    return np.einsum("...i,...i->...", x, y)[..., None]


def keep_where(mask: Array, x: Array) -> Array:
    """x (floats) where the boolean `mask` holds, 0 elsewhere, whatever x is there.

    x · mask would be NaN where x is infinite.  So the bits of x, read as an integer, are multiplied
    by 0 or 1, which takes no longer.  np.where takes up to 15 times as long on a host.
    """
    if x.itemsize not in _INTEGERS:
        return np.where(mask, x, 0)
    return (x.view(_INTEGERS[x.itemsize]) * mask).view(x.dtype)


def scatter_add(rows: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` (V, d) with rows[i] (n, d) added at row ids[i] (n,)."""
    total = np.zeros(shape, rows.dtype, like=rows)
    if is_host(rows):                       # a loop: np.add.at takes 2.5 times as long
        for i, row in zip(ids.tolist(), rows):
            total[i] += row
    else:
        add_at(total, ids, rows)
    return total


def add_at(total: Array, index: Any, values: Array) -> None:
    """`total[index] += values`, where an element that is named twice is added to twice."""
    if is_host(total):
        np.add.at(total, index, values)
    elif is_gpu(total):                     # ufunc methods do not dispatch: np.add.at would raise
        import cupy
        cupy.add.at(total, index, values)
    # A shape-only array has no numbers to add to.


def check_ids(ids: Array, num_rows: int, what: str) -> None:
    """Refuse ids on the host that are no row numbers: NumPy counts negative ones from the end."""
    if is_host(ids) and ids.size and (ids.min() < 0 or ids.max() >= num_rows):
        raise ValueError(f"{what} {ids.min()} … {ids.max()} are not all in 0 … {num_rows - 1}")
