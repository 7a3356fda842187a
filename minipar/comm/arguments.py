"""The arguments that all collectives understand: op=, algorithm= and out=."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from ..backend import Array
from .communicator import Communicator
from .errors import check_reducible

Combine = Callable[..., Array]          # combine(a, b, out=c): a ufunc, or a function like one
OPERATORS: dict[str, Combine] = {"sum": np.add, "prod": np.multiply, "max": np.maximum,
                                 "min": np.minimum}
NEED_REAL_RANKS = {"mpi", "shared"}     # algorithms that only an MPI communicator brings


def find_operator(op: str | Combine, array: Array | None = None) -> Combine:
    """The ufunc of a reduction.  A function like one, op(a, b, out=), is returned as it is.

    Raises ValueError for an unknown name, and for a sum or product of bool in `array`; TypeError
    unless that is an array of numbers.
    """
    if array is not None and (type(array) is not np.ndarray or array.dtype.kind in "bO"):
        check_reducible(array, op)
    if callable(op):
        return op
    if op not in OPERATORS:
        raise ValueError(f"unknown reduction {op!r}: choose from {', '.join(OPERATORS)}")
    return OPERATORS[op]


def find_algorithm(comm: Communicator, operation: str, algorithms: Mapping[str, Callable],
                   name: str, num_bytes: int = 0) -> Callable[..., None]:
    """The function that performs `operation`: one of its `algorithms`, or one of the communicator.

    "auto" asks the communicator, which chooses by `num_bytes`, a number equal on all ranks.  A
    communicator without a chooser takes the first of `algorithms`.  Raises ValueError for an
    unknown name, and TypeError for one that needs real ranks, on a simulated cluster.
    """
    if name == "auto":
        name = comm.choose(operation, num_bytes) or next(iter(algorithms))
    if name in algorithms:
        return algorithms[name]
    if (operation, name) in comm.own_algorithms:
        return comm.own_algorithms[operation, name].run
    raise unknown_algorithm_error(comm, operation, name, algorithms)


def unknown_algorithm_error(comm: Communicator, operation: str, name: str,
                      algorithms: Mapping[str, Callable]) -> Exception:
    """An algorithm that this communicator does not have, perhaps because it is simulated."""
    if name in NEED_REAL_RANKS and not comm.own_algorithms:
        instead = "auto" if name == "mpi" else "blocked_ring"
        return TypeError(f'algorithm="{name}" needs real MPI ranks: start with mpirun, or choose '
                         f'"{instead}"')
    own = [name for of, name in comm.own_algorithms if of == operation]
    return ValueError(f"unknown algorithm {name!r}: choose from "
                      f"{', '.join([*algorithms, 'auto', *own])}")


def check_out(out: Array | None, array: Array, shape: Sequence[int]) -> None:
    """Refuse an `out` that is not of `shape` and of the dtype of `array`."""
    if out is not None and (out.shape != tuple(shape) or out.dtype != array.dtype):
        raise out_error(out, array, shape, "they must be equal")


def fit_out(out: Array | None, array: Array, shape: tuple[int, ...]) -> Array | None:
    """`out` as an array of `shape`; refuse one of another size or dtype, or with gaps."""
    if out is None or out.shape == shape and out.dtype == array.dtype:
        return out
    if out.dtype == array.dtype and out.size == prod(shape) and out.flags.c_contiguous:
        return out.reshape(shape)
    raise out_error(out, array, shape, "give one of that shape, or a contiguous view of as many "
                    f"elements, for example buffer[start:start + {prod(shape)}]")


def out_error(out: Array, array: Array, shape: Sequence[int], mend: str) -> ValueError:
    """An `out` that does not fit the result, of `shape` and of the dtype of `array`."""
    return ValueError(f"out is {out.dtype} {out.shape}, the result {array.dtype} {tuple(shape)}: "
                      f"{mend}")


def deliver(result: Array, out: Array | None) -> Array:
    """`result`; or `out`, if it is given, after writing `result` into it."""
    if out is None:
        return result
    out[...] = result
    return out
