"""The parts of the graph: Tensors outside, and behind them nodes and gradient slots.

    Tensor ─grad_target─▶ Node ─inputs─▶ Node ─inputs─▶ GradientSlot ◀─grad_target─ Tensor (a leaf)

A gradient follows these arrows, from a result to its inputs.  No arrow leads to a Tensor, so the
graph keeps none alive.  An activation that no operation saved, or a weight gathered for one use, is
freed as soon as the model drops it.  `ops/operators.py` gives Tensor its operators and `backward`.
"""

from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import Array
from .errors import needs_floats_error, no_array_error, not_a_leaf_error

clock = count(1)        # numbers the events: a node is made, the values of a leaf change


class GradientSlot:
    """The place where the gradient of a leaf is summed up.

    `get_grad_buffer`, if given, returns the array that `grad` lives in.  It is called at the first
    contribution.  The array is a view of a longer one: a slab (many gradients side by side), or the
    flat gradient that ZeRO-2 and FSDP make for several parameters.  Each of `ready_hooks` is called
    with the slot after the last contribution of a backward pass.  `weight_only` is True for
    parameters: work that leads only to them may be deferred.  `changed_at` is the time, by `clock`,
    when the leaf's values last changed in place.
    """

    __slots__ = "grad", "get_grad_buffer", "ready_hooks", "weight_only", "changed_at", "__weakref__"
    inputs = ()         # a leaf passes no gradient on

    def __init__(self, weight_only: bool = False):
        self.grad: Array | None = None
        self.get_grad_buffer: Callable[[], Array] | None = None
        self.ready_hooks: list[Callable[[GradientSlot], None]] = []
        self.weight_only, self.changed_at = weight_only, 0

    def accumulate(self, grad: Array) -> None:
        """Add `grad`, an array that is only read: other gradients may alias it."""
        if self.grad is not None:
            self.grad += grad
        elif self.get_grad_buffer is not None:
            self.grad = self.get_grad_buffer()
            self.grad[...] = grad
        else:
            self.grad = grad.copy()

    def fill_if_missing(self) -> None:
        """Write zeros into the buffer if no contribution came: an unused parameter counts as 0."""
        if self.grad is None and self.get_grad_buffer is not None:
            self.accumulate(0)


class Node:
    """One call of a Function: PyTorch's `grad_fn`.

    `inputs`, PyTorch's `next_functions`: for each input, the node that made it or the slot of a
    leaf; None where no gradient is needed.

    `weight_only`: computed from parameters and constants alone (a cast, a mask, a gather), not from
    data.  Tensors that need no gradient are data; plain arrays and numbers are constants.  So
    `embedding` wraps its ids in a Tensor: else all that follows would count as weights.
    """

    __slots__ = ("function", "ctx", "inputs", "weight_only", "made_at", "__weakref__")
    changed_at = 0      # a result does not change

    def __init__(self, function: Any, ctx: Any, inputs: list["GradTarget | None"],
                 weight_only: bool):
        self.function, self.ctx, self.inputs, self.weight_only = function, ctx, inputs, weight_only
        self.made_at = next(clock)


GradTarget = Node | GradientSlot        # where a gradient goes: on through a node, or into a slot


class Tensor:
    """An array that knows how it was made and, if it is a leaf, its gradient.

    Raises TypeError for a leaf of integers that asks for a gradient.
    """

    __slots__ = ("data", "grad_target", "__weakref__")
    __array_ufunc__ = None      # array * tensor: NumPy steps back and asks Tensor.__rmul__

    def __init__(self, data: Any, requires_grad: bool = False):
        self.data: Array = data if hasattr(data, "nbytes") else np.asarray(data)
        self.grad_target: GradTarget | None = None      # where this tensor's gradient goes
        if requires_grad:
            if self.data.dtype.kind != "f":
                raise needs_floats_error(self.data.dtype)
            self.grad_target = GradientSlot()

    requires_grad = property(lambda self: self.grad_target is not None)

    @property
    def slot(self) -> GradientSlot:
        """The gradient slot of a leaf that requires a gradient.  Else raises AttributeError."""
        if isinstance(self.grad_target, GradientSlot):
            return self.grad_target
        raise not_a_leaf_error(self)

    @property
    def grad(self) -> Array | None:
        """The gradient summed up so far, of the same shape; None before any came."""
        return self.slot.grad

    @grad.setter
    def grad(self, value: Array | None) -> None:
        self.slot.grad = None
        if value is not None:
            self.slot.accumulate(value)      # into the slab, where there is one

    def detach(self) -> "Tensor":
        """The same array, without its history."""
        return Tensor(self.data)

    shape, ndim = property(attrgetter("data.shape")), property(attrgetter("data.ndim"))
    size, dtype = property(attrgetter("data.size")), property(attrgetter("data.dtype"))

    def item(self) -> float:
        """The number in a tensor of one element."""
        return self.data.item()

    def __array__(self, *arguments: Any, **options: Any) -> Array:
        raise no_array_error()

    def __bool__(self) -> bool:
        return bool(self.data)

    def __repr__(self) -> str:
        function = getattr(self.grad_target, "function", None)
        made = f", made by {function.__name__}" if function else ""
        return f"Tensor({self.data!r}{made})"

    if TYPE_CHECKING:       # ops/operators.py assigns these: operations need Tensor
        def _of_two(self, other: Any) -> "Tensor": ...
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _of_two
        __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __getitem__ = _of_two
        def __neg__(self) -> "Tensor": ...
        def _over_axes(self, axis: Any = None, keepdims: bool = False) -> "Tensor": ...
        sum = mean = max = _over_axes
        T: "Tensor"
        def _moved(self, *arguments: Any) -> "Tensor": ...
        reshape = transpose = astype = _moved
        def split(self, num_pieces: int, axis: int = 0) -> list["Tensor"]: ...
        backward: Callable[..., Any]
