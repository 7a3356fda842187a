"""Allocation of arrays that live long, and the observer that is told of memory.

    zeros = allocate_zeros("gradients", like=data)      the strategy, the optimizer, the slab
        │ `allocating_with`: in a file, or on the host beside a GPU
        ▼
    record_allocation("gradients", zeros)               a ledger counts it, if one listens

The allocators and the observer are context variables, so every simulated rank has its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np

from .arrays import Array, is_gpu, is_host

Allocators = Mapping[str, Callable[[Array, Any], Array]]

_observer: ContextVar[Callable[[str, Array], None] | None] = ContextVar("observer", default=None)
_allocators: ContextVar[Allocators] = ContextVar("allocators", default=MappingProxyType({}))


def record_allocation(kind: str, array: Array) -> Array:
    """Report the new `array` as memory of this kind to the observer, if there is one; return it.

    Kinds: "parameters", "gradients", "optimizer states", "communication", "offloaded", and
    "temporaries", which operations hand on.  Saved activations are not among them: `ctx.save` sees
    those.
    """
    if (observer := _observer.get()) is not None:
        observer(kind, array)
    return array


@contextmanager
def observing_allocations(observer: Callable[[str, Array], None]) -> Iterator[None]:
    """Context in which `record_allocation` calls `observer(kind, array)`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def allocate_zeros(kind: str, like: Array, shape: Any = None) -> Array:
    """New zeros like `like`, perhaps of a different `shape`, as memory of this kind.

    Inside `allocating_with` it may be in a file, or on the host beside a GPU.
    """
    if kind in _allocators.get():
        return _allocators.get()[kind](like, shape)
    shape = like.shape if shape is None else shape
    # np.zeros, unlike np.zeros_like, takes no page of memory before it is written to. But it
    # refuses sizes that the machine cannot address, which an array without numbers may have.
    return record_allocation(kind, np.zeros(shape, like.dtype, like=like)
                             if is_host(like) or is_gpu(like) else np.zeros_like(like, shape=shape))


@contextmanager
def allocating_with(allocators: Allocators) -> Iterator[None]:
    """Context in which `allocators[kind](like, shape)` makes the zeros of that kind."""
    token = _allocators.set(allocators)
    try:
        yield
    finally:
        _allocators.reset(token)
