"""A Function is an operation and its derivative; calling one adds a node to the graph.

    class Exp(Function):
        def forward(ctx, x):  y = np.exp(x); ctx.save(y); return y
        def backward(ctx, g): (y,) = ctx.saved; return [lambda: g * y()]

`ctx.save` is the only way to keep an array for backward.  So hooks on it (`saved.py`) can count a
saved array, move it, round it, or drop it and compute it again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..backend import Array, record_allocation
from .meter import current_meter
from .saved import SavedArray, StopForward, current_saved_tensors_hooks
from .tensor import Node, Tensor

# Context variables, because every rank of the simulated cluster has a context of its own.
_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_operation_hook: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("hook", default=None)


@contextmanager
def _setting(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def no_grad() -> AbstractContextManager[None]:
    """Context in which operations record nothing: evaluation, generation."""
    return _setting(_grad_enabled, False)


def is_recording() -> bool:
    """True if operations are recorded for a backward in this context."""
    return _grad_enabled.get()


def operation_hook(hook: Callable[[Tensor], Tensor] | None) -> AbstractContextManager[None]:
    """Context in which `hook(result)` replaces the result of every operation: rounded, say."""
    return _setting(_operation_hook, hook)


class Context:
    """The state that one call of a Function keeps for its backward.

    Arrays are kept through `save` only; shapes and options are plain attributes.
    """

    def __init__(self, needs_grad: list[bool]):
        self.needs_grad = needs_grad
        self.saved: tuple[SavedArray, ...] = ()
        self.backward_flops: list[int] | None = None    # for each input; known if a meter ran

    def save(self, *arrays: Array | None) -> None:
        """Keep `arrays` for backward as `ctx.saved`, each to be called when it is used."""
        if any(self.needs_grad):
            hooks = current_saved_tensors_hooks()
            self.saved = tuple([SavedArray(array, hooks) for array in arrays])

    def stop_if_requested(self) -> None:
        """Raise StopForward if a hook asked for it; called before a long computation."""
        if any(saved.item is StopForward for saved in self.saved):
            raise StopForward


class Function:
    """A differentiable operation.  A subclass defines two static methods:

    `forward(ctx, *arrays, **options) -> array`
    `backward(ctx, grad) -> [one entry per input]`: an array, None where no gradient goes, or a
        pullback: a function without arguments that computes the array.  It is called only if that
        gradient is needed, perhaps much later, and never closes over `ctx`, so that it keeps alive
        only the arrays that it uses.

    `expects` says in words which shapes are accepted.  `flops_per_element` are the FLOPs of forward
    and of the gradient of each input (one number, if they are alike), for each element of the
    output, or of the first input where that has more.
    """

    forward: Callable[..., Array]
    backward: Callable[[Any, Array], Sequence[Any]]
    expects = ""
    metered = True      # False for operations that compute nothing: views, messages
    flops_per_element: tuple[int, ...] = 1, 1

    @classmethod
    def flops(cls, ctx: Context, out: Array, *arrays: Array) -> tuple[int, list[int]]:
        """FLOPs of forward, and of backward for each input, as `meter.py` counts them."""
        size = max(out.size, np.size(arrays[0]))
        forward, *gradients = [each * size for each in cls.flops_per_element]
        return forward, gradients * (len(arrays) // len(gradients))

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Tensor:
        """Run forward on the arrays of `inputs` (Tensors or arrays); add a node to the graph."""
        arrays = [x.data if isinstance(x, Tensor) else x for x in inputs]
        record = _grad_enabled.get()
        targets = [x.grad_target if record and isinstance(x, Tensor) else None for x in inputs]
        ctx = Context([target is not None for target in targets])
        meter = current_meter() if cls.metered else None
        try:
            dtype = _common_dtype(arrays)
            start = meter.start() if meter else None
            out = Tensor(record_allocation("temporaries", cls.forward(ctx, *arrays, **options)))
            if dtype not in (None, out.dtype) and out.dtype.kind == "f" and "dtype" not in options:
                raise TypeError(f"{dtype} became {out.dtype}: convert with astype what is mixed in")
        except (ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
            raise explained(error, cls, arrays) from error
        if meter:
            forward_flops, ctx.backward_flops = cls.flops(ctx, out.data, *arrays)
            meter.stop(start, cls.__name__, "forward", forward_flops, (*arrays, out.data))
        ctx.stop_if_requested()
        if any(ctx.needs_grad):
            has_data = any(isinstance(x, Tensor) and x.grad_target is None for x in inputs)
            out.grad_target = Node(cls, ctx, targets, has_data)
        hook = _operation_hook.get() if cls.metered and out.dtype.kind == "f" else None
        return hook(out) if hook else out


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


def explained(error: Exception, function: type[Function], arrays: list[Array]) -> Exception:
    """The same error, with the operation's name, the inputs it got and those it expects."""
    kind = next((k for k in (TypeError, ValueError, IndexError) if isinstance(error, k)),
                ValueError)
    return kind(f"{function.__name__}: {error}; got {_describe(arrays)}"
                + (f"; expected {function.expects}" if function.expects else ""))


def _describe(arrays: list[Array]) -> str:
    return " and ".join(f"{tuple(a.shape)} {a.dtype}" if hasattr(a, "shape") else repr(a)
                        for a in arrays if a is not None)
