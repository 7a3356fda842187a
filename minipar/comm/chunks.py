"""The cuts that collectives make: a total among ranks, and an array into pieces."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..backend import Array
from .errors import check_numbers


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
    if len(counts) != num_pieces or sum(counts) != total or min(counts) < 0:
        raise counts_error(counts, num_pieces, total)
    stops = list(accumulate(counts))
    return list(zip([0, *stops], stops))


def counts_error(counts: Sequence[int], num_pieces: int, total: int) -> ValueError:
    """The error for `counts` that are not `num_pieces` lengths of `total` in all."""
    return ValueError(f"counts {list(counts)} add up to {sum(counts)}: give one length, 0 or more, "
                      f"for each of {num_pieces} ranks, {total} in all")


def with_length(shape: Sequence[int], dim: int, length: int) -> tuple[int, ...]:
    """`shape` with another length of axis `dim`."""
    return tuple(length if i == dim % len(shape) else n for i, n in enumerate(shape))


def axis_first(array: Array, dim: int) -> Array:
    """A contiguous array with axis `dim` moved to the front, so that its chunks are contiguous."""
    if type(array) is not np.ndarray or array.dtype.hasobject:
        check_numbers(array)
    moved = np.moveaxis(array, dim, 0)
    return moved if moved.flags.c_contiguous else moved.copy()
