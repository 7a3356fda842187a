"""The cuts that collectives make: a total among ranks, and an array into pieces."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..backend import Array
from .errors import check_axis


def chunk_bounds(total: int, num_chunks: int) -> list[tuple[int, int]]:
    """(start, stop) of each of `num_chunks` pieces of `total`, larger ones first.

    The rule of np.array_split: 6 over 4 gives 2, 2, 1, 1 (torch.chunk gives 2, 2, 2, 0).
    """
    small, extra = divmod(total, num_chunks)
    bounds, start = [], 0
    for i in range(num_chunks):
        stop = start + small + (i < extra)
        bounds.append((start, stop))
        start = stop
    return bounds


def piece_bounds(total: int, num_pieces: int,
                 counts: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """(start, stop) of pieces of the lengths `counts`; without them, by `chunk_bounds`.

    Raises ValueError unless `counts` are `num_pieces` lengths that add up to `total`.
    """
    if counts is None:
        return chunk_bounds(total, num_pieces)
    if len(counts) != num_pieces or sum(map(int, counts)) != total or min(counts) < 0:
        raise counts_error(counts, total, num_pieces)
    stops = list(accumulate(map(int, counts)))      # NumPy's small integers would overflow
    return list(zip([0, *stops], stops))


def counts_error(counts: Sequence[int], total: int, num_pieces: int) -> ValueError:
    """The error of `counts` that do not cut `total` into `num_pieces`."""
    lengths = list(map(int, counts))
    return ValueError(f"counts {lengths} add up to {sum(lengths)}: give one length, 0 or more, for "
                      f"each of {num_pieces} ranks, {total} in all")


def with_length(shape: Sequence[int], dim: int, length: int) -> tuple[int, ...]:
    """`shape` with another length of axis `dim`."""
    return tuple(length if i == dim % len(shape) else n for i, n in enumerate(shape))


def axis_first(array: Array, dim: int) -> Array:
    """A contiguous array with axis `dim` moved to the front, so that its chunks are contiguous.

    Raises TypeError unless it is an array of numbers, ValueError if it has no such axis.
    """
    if (type(array) is not np.ndarray or array.dtype.hasobject
            or not -array.ndim <= dim < array.ndim):
        check_axis(array, dim)
    moved = np.moveaxis(array, dim, 0)
    return moved if moved.flags.c_contiguous else moved.copy()


def joined(arrays: Sequence[Array], dim: int = 0) -> Array:
    """np.concatenate, which would return numbers of foreign byte order in this machine's."""
    return np.concatenate(arrays, dim, dtype=arrays[0].dtype)
