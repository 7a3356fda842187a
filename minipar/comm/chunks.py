"""What every collective shares: how a total is cut among ranks, and how two arrays are combined."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from ..backend import Array
from .communicator import Communicator

OPERATORS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


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


def piece_bounds(total: int, num_pieces: int, counts: Sequence[int] | None = None) -> list:
    """(start, stop) of pieces of the lengths `counts`; without them, by `chunk_bounds`.

    Raises ValueError unless they are `num_pieces` lengths that add up to `total`.
    """
    if counts is None:
        return chunk_bounds(total, num_pieces)
    if len(counts) != num_pieces or sum(counts) != total or min(counts) < 0:
        raise ValueError(f"counts {list(counts)} add up to {sum(counts)}: give one length, 0 or "
                         f"more, for each of {num_pieces} ranks, {total} in all")
    stops = list(accumulate(counts))
    return list(zip([0, *stops], stops))


def find_operator(op: str | Callable, dtype: np.dtype | None = None) -> Callable:
    """The ufunc of a reduction; a function like one, op(a, b, out=), stands for itself.

    Raises ValueError for an unknown one, and for sums of bool.
    """
    if callable(op):
        return op
    if op not in OPERATORS:
        raise ValueError(f"unknown reduction {op!r}: choose from {', '.join(OPERATORS)}")
    if dtype is not None and dtype.kind == "b" and op in ("sum", "prod"):
        raise ValueError(f"op={op!r} of bool: 'max' is or, 'min' is and; to count, give "
                         "array.astype(int)")
    return OPERATORS[op]


def find_algorithm(algorithms: dict, name: str):
    """One of a collective's algorithms by name.  Raises ValueError for an unknown one."""
    if name not in algorithms:
        raise ValueError(f"unknown algorithm {name!r}: choose from {', '.join(algorithms)}")
    return algorithms[name]


def neighbours(comm: Communicator) -> tuple[int, int]:
    """The ranks after and before this one on the ring."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check_out(out: Array | None, array: Array, shape: Sequence[int]) -> None:
    """Refuse an `out` that is not of `shape` and of the dtype of `array`."""
    if out is not None and (out.shape != tuple(shape) or out.dtype != array.dtype):
        raise ValueError(f"out is {out.dtype} {out.shape}, the result {array.dtype} "
                         f"{tuple(shape)}: they must be equal")


def fit_out(out: Array | None, array: Array, shape: tuple[int, ...]) -> Array | None:
    """`out` as an array of `shape`; refuse one of another size or dtype, or with gaps."""
    if out is None or out.shape == shape and out.dtype == array.dtype:
        return out
    if out.dtype == array.dtype and out.size == prod(shape) and out.flags.c_contiguous:
        return out.reshape(shape)
    raise ValueError(f"out is {out.dtype} {out.shape}, the result {array.dtype} {shape}: give one "
                     f"of that shape, or a contiguous view of as many elements, for example "
                     f"buffer[start:start + {prod(shape)}]")


def deliver(result: Array, out: Array | None) -> Array:
    """`result`, or `out` with its values if there is one."""
    if out is None:
        return result
    out[...] = result
    return out


def with_length(shape: Sequence[int], dim: int, length: int) -> tuple[int, ...]:
    """`shape` with another length of axis `dim`."""
    return tuple(length if i == dim % len(shape) else n for i, n in enumerate(shape))


def axis_first(array: Array, dim: int) -> Array:
    """A contiguous array with axis `dim` moved to the front, so that its chunks are contiguous."""
    moved = np.moveaxis(array, dim, 0)
    return moved if moved.flags.c_contiguous else moved.copy()
