"""A Function is an operation and its derivative; calling one adds a node to the graph.

    class Exp(Function):
        def forward(ctx, x):  y = np.exp(x); ctx.save(y); return y
        def backward(ctx, g): (y,) = ctx.saved; return [lambda: g * y()]

`apply` runs forward and adds the node; `engine.py` runs backward; `saved.py` keeps arrays between
the two.  `ctx.save` is the only way to keep an array for backward.  So hooks on it can count a
saved array, move it, round it, or drop it and compute it again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..backend import Array, record_allocation
from .errors import changed_dtype_error, explained_error, mixed_dtypes_error
from .meter import current_meter
from .saved import SavedArray, StopForward, can_change, current_saved_tensors_hooks
from .tensor import GradTarget, Node, Tensor

# Context variables, because every rank of the simulated cluster has a context of its own.
_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_operation_hook: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("hook", default=None)


class Function:
    """A differentiable operation; each call makes an instance, which keeps what backward needs.

    The instance is `ctx` (PyTorch's name) in the two methods that a subclass defines:

    `forward(ctx, *arrays, **options) -> array`
    `backward(ctx, grad) -> [one entry per input]`: an array, None where no gradient goes, or a
        pullback: a function without arguments that computes the array.  A pullback is called only
        if its gradient is needed, perhaps much later.  It never closes over `ctx`, so it keeps
        alive only the arrays that it uses.

    Arrays are kept through `save` only; shapes and options are plain attributes.  Arrays whose ids
    are in `lent` belong to the caller, who may refill them before backward: `save` copies them.

    `expects` says in words which shapes are accepted.  If `metered`, a meter counts each call, and
    an `operation_hook` sees its result.  `metered` is False for views and messages, which make no
    new numbers, for rounding, and for operations that wait for other ranks.  `flops_per_element`
    are the FLOPs of forward and of the gradient of each input; one number stands for all gradients.
    They are per element of the output, or of the first input if that has more.
    """

    forward: Callable[..., Array]
    backward: Callable[[Any, Array], Sequence[Any]]
    expects = ""
    metered = True
    flops_per_element: tuple[int, ...] = 1, 1
    saved: tuple[SavedArray, ...] = ()
    backward_flops: list[int] | None = None     # for each input; known if a meter ran
    _must_stop = False                          # a hook asked forward to stop

    def __init__(self, needs_grad: list[bool], lent: Sequence[int] = ()):
        self.needs_grad, self.lent = needs_grad, lent

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Tensor:
        """Run forward on the arrays of `inputs` (Tensors or arrays); add a node to the graph."""
        arrays, dtypes, targets, lent, weight_only = unpack_inputs(inputs)
        recording = _grad_enabled.get()
        needs_grad = [recording and target is not None for target in targets]
        ctx = cls(needs_grad, lent)
        out = run_forward(cls, ctx, arrays, dtypes, options)
        if True in needs_grad:
            out.grad_target = Node(cls, ctx, targets, weight_only)
        hook = _operation_hook.get() if cls.metered else None
        return out if hook is None or out.dtype.kind != "f" else hook(out)

    def flops(self, out: Array, *arrays: Array) -> tuple[int, list[int]]:
        """FLOPs of forward, and of backward for each input, as `meter.py` counts them."""
        size = max(out.size, np.size(arrays[0]))
        forward, *gradients = [each * size for each in self.flops_per_element]
        return forward, gradients * (len(arrays) // len(gradients))

    def save(self, *arrays: Array | None) -> None:
        """Keep `arrays` for backward as `ctx.saved`, if any input needs a gradient.

        Backward gets each array by calling its entry of `ctx.saved`.
        """
        if True in self.needs_grad:
            lent, hooks = self.lent, current_saved_tensors_hooks()
            self.saved = tuple([SavedArray(a.copy("K") if id(a) in lent else a, hooks)
                                for a in arrays])
            if hooks is not None:
                self._must_stop = any(saved.item is StopForward for saved in self.saved)

    def stop_if_requested(self) -> None:
        """Raise StopForward if a hook asked for it; called before a long computation."""
        if self._must_stop:
            raise StopForward


def unpack_inputs(inputs: Sequence[Any]) -> tuple[list, list[np.dtype], list[GradTarget | None],
                                                  list[int], bool]:
    """Return (arrays, dtypes, targets, lent, weight_only) of an operation's inputs.

    `dtypes` are the distinct floating-point dtypes.  `targets` says where each gradient goes, None
    where none is needed.  `lent` are the ids of arrays that need no gradient and that the caller
    may change.  `weight_only` is True if all Tensors among the inputs depend on weights alone.
    """
    arrays, dtypes, targets, lent, weight_only = [], [], [], [], True
    for x in inputs:
        array, target = x, None
        if isinstance(x, Tensor):
            array, target = x.data, x.grad_target
            weight_only = weight_only and target is not None and target.weight_only
        if target is None and can_change(array):
            lent.append(id(array))
        arrays.append(array)
        targets.append(target)
        dtype = getattr(array, "dtype", None)
        if dtype is not None and dtype not in dtypes and dtype.kind == "f":
            dtypes.append(dtype)
    return arrays, dtypes, targets, lent, weight_only


def run_forward(function: type[Function], ctx: Function, arrays: list, dtypes: list[np.dtype],
                options: dict) -> Tensor:
    """The result of forward.  NumPy's errors get the operation's name.

    Raises TypeError if the inputs have several `dtypes`, or if the result has a different one.
    """
    meter = current_meter(function.metered)
    try:
        if len(dtypes) > 1:
            raise mixed_dtypes_error(*dtypes[:2])
        out = Tensor(function.forward(ctx, *arrays, **options) if meter is None
                     else meter.forward(function, ctx, arrays, options))
        dtype = out.data.dtype
        if dtypes and dtype not in dtypes and dtype.kind == "f" and "dtype" not in options:
            raise changed_dtype_error(dtypes[0], dtype)
    except (ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
        raise explained_error(error, function, arrays) from error
    record_allocation("temporaries", out.data)
    ctx.stop_if_requested()
    return out


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


def is_observed() -> bool:
    """True if a meter or a hook sees operations in this context."""
    return current_meter() is not None or _operation_hook.get() is not None


def operation_hook(hook: Callable[[Tensor], Tensor] | None) -> AbstractContextManager[None]:
    """Context in which `hook(result)` replaces each metered floating-point result."""
    return _setting(_operation_hook, hook)


def apply_operation_hook(result: Tensor) -> Tensor:
    """Apply the hook of this context to the result of an operation that is not `metered`."""
    hook = _operation_hook.get()
    return result if hook is None else hook(result)
