"""A Function is an operation and its derivative; calling one adds a node to the graph.

    class Exp(Function):
        def forward(ctx, x):  y = np.exp(x); ctx.save(y); return y
        def backward(ctx, g): (y,) = ctx.saved; return [lambda: g * y()]

What forward saves is all that is kept of it, and whoever hooks into `ctx.save` can count it, move
it, round it, or drop it and make it again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..backend import Array, record_allocation
from .meter import current_meter
from .tensor import Node, Tensor

# Context variables, because every rank of the simulated cluster has a context of its own.
_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_saved_hooks: ContextVar[tuple[Callable, Callable] | None] = ContextVar("hooks", default=None)
_after: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("after", default=None)


@contextmanager
def _setting(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def no_grad():
    """Context in which operations record nothing: evaluation, generation."""
    return _setting(_grad_enabled, False)


def is_recording() -> bool:
    """Whether operations are remembered here for a backward."""
    return _grad_enabled.get()


def saved_hooks() -> tuple[Callable, Callable] | None:
    """The (pack, unpack) of this context, for a `Saved` of one's own; None if there is none."""
    return _saved_hooks.get()


def saved_tensors_hooks(pack: Callable[[Array], Any], unpack: Callable[[Any], Array],
                        nested: bool = True):
    """Context in which `pack(array)` is kept for every saved array; backward gets `unpack` of it.

    Nested hooks compose: the innermost packs first and unpacks last.  Without `nested` those
    outside see nothing of what is saved here.
    """
    outer, inner_pack, inner_unpack = _saved_hooks.get(), pack, unpack
    if outer is not None and nested:
        def pack(array):
            return outer[0](inner_pack(array))

        def unpack(item):
            return inner_unpack(outer[1](item))
    return _setting(_saved_hooks, (pack, unpack))


def after_operations(change: Callable[[Tensor], Tensor] | None):
    """Context in which what an operation computes is replaced by `change` of it: rounded, say."""
    return _setting(_after, change)


class Enough(BaseException):
    """Ends a forward of which nothing more is wanted; a hook asks for it by packing to `Enough`."""


class Saved:
    """An array kept for backward: call it to get the array (unpacked each time it is called)."""

    __slots__ = ("item", "unpack")

    def __init__(self, array: Array | None, hooks: tuple[Callable, Callable] | None):
        plain = hooks is None or not hasattr(array, "nbytes")   # None and numbers are no arrays
        pack, self.unpack = (None, None) if plain else hooks
        self.item = array if pack is None else pack(array)

    def __call__(self) -> Array:
        return self.item if self.unpack is None else self.unpack(self.item)


class Context:
    """What one call of a Function keeps for its backward.

    Arrays only through `save`; shapes and options as plain attributes.
    """

    def __init__(self, needs_grad: list[bool]):
        self.needs_grad = needs_grad
        self.saved: tuple[Saved, ...] = ()
        self.backward_flops: list[int] | None = None    # for each input; known if a meter ran

    def save(self, *arrays: Array | None) -> None:
        """Keep `arrays`; backward finds them as `ctx.saved`, each to be called when it is used."""
        if any(self.needs_grad):
            hooks = _saved_hooks.get()
            self.saved = tuple([Saved(array, hooks) for array in arrays])

    def stop_if_enough(self) -> None:
        """Raise Enough if a hook asked for it: of use before a long computation, after `save`."""
        if any(saved.item is Enough for saved in self.saved):
            raise Enough


class Function:
    """A differentiable operation.  A subclass defines two static methods:

    `forward(ctx, *arrays, **options) -> array`, and `backward(ctx, grad) -> [one entry per input]`:
    an array, None where no gradient goes, or a function of no arguments that returns the array and
    is called only if that gradient is wanted, perhaps much later.  Such a function never closes
    over `ctx`, so that it keeps alive only what it needs.  `rule` says what shapes are accepted.
    `flops_per_element` are the FLOPs of forward, and of the gradient of each input (one number, if
    they are alike), for each element of the output, or of the first input where that has more.
    """

    rule = ""
    metered = True      # False for what computes nothing: views, messages
    flops_per_element: tuple[int, ...] = 1, 1

    @classmethod
    def flops(cls, ctx: Context, out: Array, *arrays: Array) -> tuple[int, list[int]]:
        """FLOPs of forward, and of backward for each input, as `meter.py` counts them."""
        size = max(out.size, np.size(arrays[0]))
        forward, *gradients = [each * size for each in cls.flops_per_element]
        return forward, gradients * (len(arrays) // len(gradients))

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Tensor:
        """Run forward on the arrays of `inputs` (Tensors or arrays) and remember how."""
        arrays = [x.data if isinstance(x, Tensor) else x for x in inputs]
        record = _grad_enabled.get()
        edges = [x.edge if record and isinstance(x, Tensor) else None for x in inputs]
        ctx = Context([edge is not None for edge in edges])
        meter = current_meter() if cls.metered else None
        try:
            dtype = _common_dtype(arrays)
            start = meter.start() if meter else None
            out = Tensor(record_allocation("temporaries", cls.forward(ctx, *arrays, **options)))
            if dtype not in (None, out.dtype) and out.dtype.kind == "f" and "dtype" not in options:
                raise TypeError(f"{dtype} became {out.dtype}: convert with astype what is mixed in")
        except (ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
            kind = next((k for k in (TypeError, ValueError, IndexError) if isinstance(error, k)),
                        ValueError)
            raise kind(f"{cls.__name__}: {error}; got {_describe(arrays)}"
                       + (f"; expected {cls.rule}" if cls.rule else "")) from error
        if meter:
            forward_flops, ctx.backward_flops = cls.flops(ctx, out.data, *arrays)
            meter.stop(start, cls.__name__, "forward", forward_flops, (*arrays, out.data))
        ctx.stop_if_enough()
        if any(ctx.needs_grad):
            has_data = any(isinstance(x, Tensor) and x.edge is None for x in inputs)
            out.edge = Node(cls, ctx, edges, has_data)
        change = _after.get() if cls.metered and out.dtype.kind == "f" else None
        return change(out) if change else out


def _common_dtype(arrays: list[Array]) -> np.dtype | None:
    """The floating-point dtype of `arrays`, None if there is none.

    Mixed precisions are an error: float32 * float64 would silently double every later cost.
    """
    found = None
    for array in arrays:
        dtype = getattr(array, "dtype", None)
        if dtype is not None and dtype.kind == "f":
            if found is not None and dtype != found:
                raise TypeError(f"{found} and {dtype} do not mix: convert one with astype")
            found = dtype
    return found


def _describe(arrays: list[Array]) -> str:
    return " and ".join(f"{tuple(a.shape)} {a.dtype}" if hasattr(a, "shape") else repr(a)
                        for a in arrays if a is not None)
