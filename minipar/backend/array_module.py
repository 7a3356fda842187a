"""The seam between NumPy and CuPy: the few places that NumPy's protocols do not reach.

Everywhere else the code calls `np.*` on whatever array comes: `np.exp(x)` of a CuPy array runs on
the GPU, and of a shape-only array (`shape_array.py`) only works out a shape.  The array decides.
(Copies that a GPU makes while it computes are in `host_memory.py`.)
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np

Array = Any     # np.ndarray, cupy.ndarray or ShapeArray

# A chain of passes over pieces of 256 KiB stays in the L2 cache (flat from 128 KiB to 1 MiB).
BLOCK_BYTES = 1 << 18

_HOST = (np.ndarray, np.generic, int, float, bool)


def is_host(array: Array) -> bool:
    """Whether NumPy itself owns the numbers, so that Python code may look at them."""
    return isinstance(array, _HOST)


def is_gpu(array: Array) -> bool:
    """Whether the numbers live on a CUDA device (a CuPy array)."""
    return hasattr(array, "__cuda_array_interface__")


def like(values: Any, array: Array) -> Array:
    """`values` (host numbers) as an array of the kind of `array`: on its device, its own dtype."""
    if is_host(array):
        return np.asarray(values)
    if is_gpu(array):
        import cupy
        return cupy.asarray(values)
    return np.empty_like(array, shape=np.shape(values), dtype=np.asarray(values).dtype)


def to_host(array: Array) -> np.ndarray:
    """The numbers as a NumPy array; a copy only where they live elsewhere."""
    return array.get() if is_gpu(array) else np.asarray(array)


def blocks(first: Array, *rest: Array) -> Iterator[tuple[Array, ...]]:
    """The same leading rows of each array, a cache-sized piece at a time.

    One piece where pieces cost more than they save (GPU, shape-only arrays).
    """
    length = first.shape[0] if first.ndim else 0
    num_pieces = max(1, first.nbytes // BLOCK_BYTES) if is_host(first) else 1
    step = max(1, -(-length // num_pieces))
    for i in range(0, length, step):
        yield tuple(a[i:i + step] for a in (first, *rest))


def scatter_add(rows: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` (V, d) with rows[i] (n, d) added at row ids[i] (n,)."""
    total = np.zeros_like(rows, shape=shape)
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
    """Refuse ids that are no row number: negative ones would silently count from the end."""
    if is_host(ids) and ids.size and (ids.min() < 0 or ids.max() >= num_rows):
        raise ValueError(f"{what} {ids.min()} … {ids.max()} are not all in 0 … {num_rows - 1}")


# Who is told of new arrays; a context variable, as every simulated rank has its own.
_observer: ContextVar[Callable[[str, Array], None] | None] = ContextVar("observer", default=None)


def allocated(kind: str, array: Array) -> Array:
    """Say that `array`, a new one, is memory of this kind; return it.

    Kinds: "parameters", "gradients", "optimizer states", "communication", "offloaded", and
    "temporaries", which operations hand on.  Saved activations are seen by `ctx.save`.  Nothing
    happens unless a ledger (`memory/ledger.py`) listens.
    """
    observer = _observer.get()
    if observer is not None:
        observer(kind, array)
    return array


@contextmanager
def observing_allocations(observer: Callable[[str, Array], None]) -> Iterator[None]:
    """Context in which `observer(kind, array)` is told of what `allocated` is told of."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


# Who makes the arrays that live long, by their kind, where others than NumPy do.
Makers = Mapping[str, Callable[[Array, Any], Array]]
_makers: ContextVar[Makers] = ContextVar("makers", default=MappingProxyType({}))


def zeros(kind: str, like: Array, shape: Any = None) -> Array:
    """A new array of zeros, memory of this kind: as `like`, but perhaps of another shape.

    Inside `making` it may be elsewhere: in a file, or on the host beside a GPU.
    """
    if kind in _makers.get():
        return _makers.get()[kind](like, shape)
    # np.zeros, unlike np.zeros_like, takes no page of memory before it is written to.
    return allocated(kind, np.zeros(like.shape if shape is None else shape, like.dtype, like=like))


@contextmanager
def making(makers: Makers) -> Iterator[None]:
    """Context in which makers[kind](like, shape) makes what `zeros` is asked for."""
    token = _makers.set(makers)
    try:
        yield
    finally:
        _makers.reset(token)


def beside(array: Array, other: Array) -> Array:
    """`array` itself if it lives where `other` does, on the host or on a GPU; else a copy there."""
    return array if is_gpu(array) == is_gpu(other) else like(to_host(array), other)


def place_in(array: Array, base: Array) -> tuple | None:
    """Which part of the contiguous `base` the view `array` is: (offset, shape, strides) in bytes.

    None if it is no view of it.  `view_of(base, place)` is the inverse.
    """
    owner = storage(base)
    if storage(array) is not owner:
        return None
    return _address(array) - _address(base), array.shape, array.strides


def view_of(base: Array, place: tuple) -> Array:
    """The view of `base` that `place_in` described."""
    offset, shape, strides = place
    tail = base.reshape(base.size)[offset // base.itemsize:]
    if is_gpu(base):
        import cupy
        return cupy.lib.stride_tricks.as_strided(tail, shape, strides)
    return np.ndarray(shape, base.dtype, tail, strides=strides)     # as_strided hides whose it is


def flat_view(owner: Array) -> Array:
    """The whole memory of an array that owns it, as a view (n,) in the order of memory."""
    order = sorted(range(owner.ndim), key=lambda axis: -owner.strides[axis])
    return owner.transpose(order).reshape(owner.size)


def _address(array: Array) -> int:
    return array.data.ptr if is_gpu(array) else array.__array_interface__["data"][0]


def storage(array: Array) -> Array:
    """The array that owns the memory that `array` is a view of."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def keep_freed_memory(keep: bool = True) -> bool:
    """Tell glibc to hand freed memory to the next array instead of back to the kernel, or not to.

    Fresh pages cost a fault and a zeroing each: a training step, which allocates its activations
    anew, is about 13 % slower without.  It is a setting of the whole process, so only programs
    call it.  Returns whether the C library has this setting (glibc; not macOS, not musl).
    """
    mmap_threshold, trim_threshold = -3, -1             # from malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(mmap_threshold, 1 << (25 if keep else 17))
                and mallopt(trim_threshold, 1 << (30 if keep else 17)))
