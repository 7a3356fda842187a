"""What the collectives share: cutting arrays, and checking the arguments op=, algorithm=, out=."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ..backend import Array
from .communicator import Communicator
from .errors import check_axis, check_numbers, check_place

Combine = Callable[..., Array]          # combine(a, b, out=c): a ufunc, or a function like one
OPERATORS: dict[str, Combine] = {"sum": np.add, "prod": np.multiply, "max": np.maximum,
                                 "min": np.minimum}
NO_NUMBERS = (np.str_, np.bytes_, np.datetime64, np.timedelta64, np.void)   # void: records
NEED_REAL_RANKS = {"mpi", "shared"}     # algorithms that only an MPI communicator brings


def chunk_bounds(total: int, num_chunks: int) -> list[tuple[int, int]]:
    """(start, stop) of each of `num_chunks` pieces of `total`, larger ones first.

    It is the rule of np.array_split: 6 over 4 gives 2, 2, 1, 1 (torch.chunk makes only 2, 2, 2).
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

    It is a view of `array` where possible.  Raises TypeError for what is no array, or an array of
    Python objects, and ValueError if it has no axis `dim`.
    """
    if (type(array) is not np.ndarray or array.dtype.hasobject
            or not -array.ndim <= dim < array.ndim):
        check_axis(array, dim)
    moved = np.moveaxis(array, dim, 0)
    return moved if moved.flags.c_contiguous else moved.copy()


def joined(arrays: Sequence[Array], dim: int = 0) -> Array:
    """The arrays concatenated, in their own byte order: np.concatenate alone returns the native."""
    return np.concatenate(arrays, dim, dtype=arrays[0].dtype)


def find_operator(op: str | Combine, array: Array | None = None) -> Combine:
    """The ufunc named `op`.  A function like a ufunc, op(a, b, out=), is returned as it is.

    Raises ValueError for an unknown name, and for a sum or product if `array` is of bool.  Raises
    TypeError if `array` holds Python objects or, unless the caller gives a function, elements that
    are no numbers (text, dates, records).
    """
    if op not in OPERATORS or array is not None and (
            type(array) is not np.ndarray or array.dtype.kind not in "iufc"):
        check_reduction(op, array)
    return OPERATORS[op] if isinstance(op, str) else op


def check_reduction(op: str | Combine, array: Array | None) -> None:
    """Raise the errors of `find_operator`; a function that is no ufunc may combine any dtype."""
    if array is not None:
        check_numbers(array)
    if isinstance(op, str) and op not in OPERATORS or not (isinstance(op, str) or callable(op)):
        raise ValueError(f"unknown reduction {op!r}: choose from {', '.join(OPERATORS)}")
    if array is None or not isinstance(op, str | np.ufunc):
        return
    name, dtype = getattr(op, "__name__", op), array.dtype
    if issubclass(dtype.type, NO_NUMBERS):
        raise TypeError(f"op={name!r} of {dtype}: a reduction needs numbers, such as float64 or "
                        "int64, or a function op(a, b, out=) that combines others")
    if dtype.kind == "b" and op in ("sum", "prod", np.add, np.multiply):
        raise ValueError(f"op={name!r} of bool: 'max' is or, 'min' is and; to count, give "
                         "array.astype(int)")
    if isinstance(op, np.ufunc):
        none = np.empty(0, dtype)
        try:
            op(none, none, out=none)
        except TypeError as error:
            raise TypeError(f"op={name!r} does not make one {dtype} of two: choose "
                            f"{', '.join(OPERATORS)}") from error


def find_algorithm(comm: Communicator, operation: str, name: str,
                   num_bytes: int = 0) -> Callable[..., None]:
    """The function that performs `operation`: from `comm/algorithms.py` or of the communicator.

    For "auto" the communicator chooses by `num_bytes`, a number equal on all ranks.  If it
    makes no choice, the first algorithm of the table is taken.  Raises ValueError for an unknown
    name.  Raises TypeError on a simulated cluster for an algorithm that needs real ranks.
    """
    algorithms = algorithm_table()[operation]
    if name == "auto":
        name = comm.choose(operation, num_bytes) or next(iter(algorithms))
    if name in algorithms:
        return algorithms[name].run
    if (operation, name) in comm.own_algorithms:
        return comm.own_algorithms[operation, name].run
    raise unknown_algorithm_error(comm, operation, name, algorithms)


@cache
def algorithm_table() -> dict[str, dict[str, Any]]:
    """`ALGORITHMS` of algorithms.py, by operation and name."""
    # By name, since that file imports the collectives, which import this one.
    return import_module(".algorithms", __package__).ALGORITHMS


def unknown_algorithm_error(comm: Communicator, operation: str, name: str,
                            algorithms: Iterable[str]) -> Exception:
    """The error for an algorithm that this communicator lacks, perhaps because it is simulated."""
    if name in NEED_REAL_RANKS and not comm.own_algorithms:
        instead = "auto" if name == "mpi" else "blocked_ring"
        return TypeError(f'algorithm="{name}" needs real MPI ranks: start with mpirun, or choose '
                         f'"{instead}"')
    own = [name for of, name in comm.own_algorithms if of == operation]
    return ValueError(f"unknown algorithm {name!r}: choose from "
                      f"{', '.join([*algorithms, 'auto', *own])}")


def check_out(out: Array | None, array: Array, shape: Sequence[int]) -> None:
    """Refuse an `out` that is read-only, or not of `shape` and of the dtype of `array`."""
    if out is not None and (type(out) is not np.ndarray or not out.flags.writeable
                            or out.shape != tuple(shape) or out.dtype != array.dtype):
        check_result(out, array, shape)


def check_result(out: Array, array: Array, shape: Sequence[int]) -> None:
    """The slow half of `check_out`: raise the error, or accept an `out` that is not NumPy's own."""
    check_place(out)
    if out.shape != tuple(shape) or out.dtype != array.dtype:
        raise ValueError(f"out is {out.dtype} {out.shape}, the result {array.dtype} "
                         f"{tuple(shape)}: they must be equal")


def fit_out(out: Array | None, array: Array, shape: tuple[int, ...]) -> Array | None:
    """`out` as an array of `shape`; refuse a different dtype or size.

    An `out` of a different shape must be contiguous.
    """
    if out is None or getattr(out, "shape", shape) == shape:
        check_out(out, array, shape)
        return out
    if out.dtype == array.dtype and out.size == prod(shape) and out.flags.c_contiguous:
        check_out(out, array, out.shape)
        return out.reshape(shape)
    raise fit_error(out, array, shape)


def fit_error(out: Array, array: Array, shape: tuple[int, ...]) -> ValueError:
    """The error of an `out` that cannot be seen as an array of `shape`."""
    check_place(out)
    return ValueError(f"out is {out.dtype} {out.shape}, the result {array.dtype} {shape}: give one "
                      f"of that shape, or a contiguous view of as many elements, for example "
                      f"buffer[start:start + {prod(shape)}]")


def deliver(result: Array, out: Array | None) -> Array:
    """`result`; or `out`, if it is given, after writing `result` into it."""
    if out is None:
        return result
    out[...] = result
    return out
