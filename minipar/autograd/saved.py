"""Arrays that are saved for backward, and the hooks that count, move, round or recompute them.

    ctx.save(x) ──pack──▶ item ┄┄┄┄┄┄┄ until backward ┄┄┄┄┄┄┄ ──unpack──▶ x

The names are PyTorch's (torch.autograd.graph.saved_tensors_hooks).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..backend import Array

Hooks = tuple[Callable[[Array], Any], Callable[[Any], Array]]       # pack, unpack

# A context variable, because every rank of the simulated cluster has a context of its own.
_hooks: ContextVar[Hooks | None] = ContextVar("saved_tensors_hooks", default=None)


class StopForward(BaseException):
    """Ends a forward early; a pack hook asks for it by returning this class, not an array."""


def can_change(array: Any) -> bool:
    """True for an array, unless it is read-only."""
    return hasattr(array, "flags") and getattr(array.flags, "writeable", True)      # NumPy's only


def unchanging(array: Any) -> Any:
    """A copy of an array that its owner can change, read-only if NumPy's; else the value itself."""
    if can_change(array):
        array = array.copy("K")                                 # "K": axes in the same order
        if isinstance(array, np.ndarray):
            array.flags.writeable = False                       # so the next save need not copy it
    return array


class SavedArray:
    """An array kept for backward: call it to get the array (unpacked each time it is called)."""

    __slots__ = ("item", "unpack")

    def __init__(self, array: Array | None, hooks: Hooks | None):
        self.item: Any = array
        self.unpack: Callable[[Any], Array] | None = None
        if hooks is not None and hasattr(array, "nbytes"):      # None and numbers are no arrays
            pack, self.unpack = hooks
            self.item = pack(array)

    def __call__(self) -> Array:
        return self.item if self.unpack is None else self.unpack(self.item)


@contextmanager
def saved_tensors_hooks(pack: Callable[[Array], Any], unpack: Callable[[Any], Array],
                        nested: bool = True) -> Iterator[None]:
    """Context in which `pack(array)` is kept for every saved array; backward gets `unpack` of it.

    Nested hooks compose: the innermost packs first and unpacks last.  With nested=False, the hooks
    of the contexts around this one see no array that is saved here.
    """
    outer, inner = _hooks.get(), (pack, unpack)
    if outer is not None and nested:
        def pack(array):
            return outer[0](inner[0](array))

        def unpack(item):
            return inner[1](outer[1](item))
    token = _hooks.set((pack, unpack))
    try:
        yield
    finally:
        _hooks.reset(token)


def current_saved_tensors_hooks() -> Hooks | None:
    """The (pack, unpack) of this context, or None; a `SavedArray` takes them."""
    return _hooks.get()
