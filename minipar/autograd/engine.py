"""Reverse-mode automatic differentiation: a graph of function calls, walked once, backwards.

    x ──┐                     forward:  y = f(x, w), and f saves the arrays its derivative will need
        ├─▶ Node(f) ◀── y     backward: f turns dL/dy into dL/dx and dL/dw
    w ──┘

A node points at other nodes and at the gradient slots of leaves, never at a Tensor: an activation
that nobody saved, or a weight that was gathered for one use, is freed when the model drops it.
What was saved is freed as soon as the walk has passed its node.

Source: Griewank & Walther, Evaluating Derivatives (2008), chapter 3.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..backend import Array
from .meter import current_meter

# Context variables, because every rank of the simulated cluster has a context of its own.
_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_saved_hooks: ContextVar[tuple[Callable, Callable] | None] = ContextVar("hooks", default=None)


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


def saved_tensors_hooks(pack: Callable[[Array], Any], unpack: Callable[[Any], Array]):
    """Context in which `pack(array)` is kept for every saved array; backward gets `unpack` of it.

    Nested hooks compose: the innermost packs first and unpacks last.
    """
    outer, inner_pack, inner_unpack = _saved_hooks.get(), pack, unpack
    if outer is not None:
        def pack(array):
            return outer[0](inner_pack(array))

        def unpack(item):
            return inner_unpack(outer[1](item))
    return _setting(_saved_hooks, (pack, unpack))


class GradientSlot:
    """Where the gradient of a leaf is summed up.

    `buffer`, if given, is where `grad` lives: a view of a flat slab.  Each of `ready_hooks` is
    called with the slot when the last contribution of a backward pass has been added.
    `weight_only` is True for parameters: work that only leads there may be deferred.
    """

    __slots__ = ("grad", "buffer", "ready_hooks", "weight_only", "__weakref__")

    def __init__(self, weight_only: bool = False):
        self.grad: Array | None = None
        self.buffer: Array | None = None
        self.ready_hooks: list[Callable[[GradientSlot], None]] = []
        self.weight_only = weight_only

    def accumulate(self, grad: Array) -> None:
        """Add `grad`, which is only read: others may hold the same array."""
        if self.grad is not None:
            self.grad += grad
        elif self.buffer is not None:
            self.buffer[...] = grad
            self.grad = self.buffer
        else:
            self.grad = grad.copy()


class Node:
    """One call of a Function.  `edges` lead to what made its inputs; None where no gradient goes.

    `weight_only`: made of parameters and constants alone (a cast, a mask, a gather), not of data.
    Tensors that need no gradient are data, plain arrays and numbers are constants.
    """

    __slots__ = ("function", "ctx", "edges", "weight_only", "__weakref__")

    def __init__(self, function: type["Function"], ctx: "Context", edges: list["Edge | None"],
                 has_data: bool):
        self.function, self.ctx, self.edges = function, ctx, edges
        self.weight_only = not has_data and all(edge is None or edge.weight_only for edge in edges)


Edge = Node | GradientSlot


class Tensor:
    """An array that knows how it was made, and the gradient of a leaf.

    Raises TypeError for a leaf of integers that asks for a gradient.
    """

    __slots__ = ("data", "edge", "__weakref__")
    __array_ufunc__ = None      # array * tensor: NumPy steps back and asks Tensor.__rmul__

    def __init__(self, data: Any, requires_grad: bool = False):
        self.data: Array = data if hasattr(data, "dtype") else np.asarray(data)
        self.edge: Edge | None = None       # where a gradient with respect to this tensor goes
        if requires_grad:
            if self.data.dtype.kind != "f":
                raise TypeError(f"a gradient needs floating-point numbers, not {self.data.dtype}: "
                                "convert with Tensor(data.astype(np.float32), requires_grad=True)")
            self.edge = GradientSlot()

    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    dtype = property(lambda self: self.data.dtype)
    requires_grad = property(lambda self: self.edge is not None)

    @property
    def slot(self) -> GradientSlot:
        """The gradient slot of a leaf.  Raises for a tensor that an operation made."""
        if isinstance(self.edge, GradientSlot):
            return self.edge
        raise AttributeError("only a leaf with requires_grad=True has a gradient; this tensor "
                             + ("was made by an operation" if self.edge else "asks for none"))

    @property
    def grad(self) -> Array | None:
        """The gradient summed up so far, of the same shape; None before the first backward."""
        return self.slot.grad

    @grad.setter
    def grad(self, value: Array | None) -> None:
        self.slot.grad = value

    def detach(self) -> "Tensor":
        """The same array, without its history."""
        return Tensor(self.data)

    def item(self) -> float:
        """The number in a tensor of one element."""
        return self.data.item()

    def backward(self, grad: Array | None = None, defer_weights: bool = False):
        """Add d self / d leaf to the gradient of every leaf: see `backward`."""
        return backward(self, grad, defer_weights)

    def __repr__(self) -> str:
        made = f", made by {self.edge.function.__name__}" if isinstance(self.edge, Node) else ""
        return f"Tensor({self.data!r}{made})"


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


class Function:
    """A differentiable operation.  A subclass defines two static methods:

    `forward(ctx, *arrays, **options) -> array`, and `backward(ctx, grad) -> [one entry per input]`:
    an array, None where no gradient goes, or a function of no arguments that returns the array and
    is called only if that gradient is wanted, perhaps much later.  Such a function never closes
    over `ctx`, so that it keeps alive only what it needs.  `rule` says what shapes are accepted.
    """

    rule = ""

    @staticmethod
    def flops(ctx: Context, out: Array, *arrays: Array) -> tuple[int, list[int]]:
        """Floating-point operations of forward, and of backward for each input."""
        return out.size, [out.size] * len(arrays)

    @classmethod
    def apply(cls, *inputs: Any, **options: Any) -> Tensor:
        """Run forward on the arrays of `inputs` (Tensors or arrays) and remember how."""
        arrays = [x.data if isinstance(x, Tensor) else x for x in inputs]
        record = _grad_enabled.get()
        edges = [x.edge if record and isinstance(x, Tensor) else None for x in inputs]
        ctx = Context([edge is not None for edge in edges])
        meter = current_meter()
        try:
            dtype = _common_dtype(arrays)
            start = meter.start() if meter else None
            out = Tensor(cls.forward(ctx, *arrays, **options))
            if dtype not in (None, out.dtype) and out.dtype.kind == "f" and "dtype" not in options:
                raise TypeError(f"{dtype} became {out.dtype}: convert with astype what is mixed in")
        except (ValueError, TypeError, IndexError) as error:
            kind = next(k for k in (TypeError, ValueError, IndexError) if isinstance(error, k))
            raise kind(f"{cls.__name__}: {error}; got {_describe(arrays)}"
                       + (f"; expected {cls.rule}" if cls.rule else "")) from error
        if meter:
            forward_flops, ctx.backward_flops = cls.flops(ctx, out.data, *arrays)
            meter.stop(start, cls.__name__, "forward", forward_flops, (*arrays, out.data))
        if any(ctx.needs_grad):
            has_data = any(isinstance(x, Tensor) and x.edge is None for x in inputs)
            out.edge = Node(cls, ctx, edges, has_data)
        return out


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


def backward(root: Tensor, grad: Array | None = None,
             defer_weights: bool = False) -> Callable[[], None] | None:
    """Visit every node after all of its consumers, pass its gradient on, free it.

    With `defer_weights` all that leads only to parameters is left undone (casts, masks and gathers
    included) and comes back as a function to be called when there is time: the W of zero-bubble
    pipelines.  Raises RuntimeError if nothing needs a gradient, or if the graph was walked before.
    """
    if root.edge is None:
        raise RuntimeError("backward() from a tensor that depends on nothing with "
                           "requires_grad=True (or that was made under no_grad)")
    if grad is None:
        if root.size != 1:
            raise RuntimeError(f"backward() of a tensor of shape {root.shape} needs the gradient "
                               "of the same shape: only a single number has the obvious one, 1")
        grad = np.ones_like(root.data)
    elif (grad.shape, grad.dtype) != (root.shape, root.dtype):
        raise ValueError(f"backward() of a tensor {root.shape} {root.dtype} needs a gradient of "
                         f"the same shape and dtype, not {grad.shape} {grad.dtype}")
    waiting = _count_consumers(root.edge)
    sums: dict[Edge, Array] = {}
    ours: set[Edge] = set()         # sums that were allocated here, and may be added to in place
    later: list = []
    meter = current_meter()

    def run(todo: list, deferring: bool) -> None:
        while todo:
            edge, piece, charge = todo.pop()    # last in, first out: weights, then x, then upstream
            if callable(piece):
                start = meter.start() if meter else None
                piece = piece()
                if meter:
                    meter.stop(start, *charge[:3], (*charge[3], piece))
            waiting[edge] -= 1
            if isinstance(edge, GradientSlot):
                edge.accumulate(piece)
                if not waiting[edge]:
                    for hook in edge.ready_hooks:
                        hook(edge)
                continue
            if edge not in sums:
                sums[edge] = piece              # perhaps an alias of another gradient: read only
            elif edge in ours:
                sums[edge] += piece
            else:
                sums[edge] = sums[edge] + piece
                ours.add(edge)
            piece = charge = None               # drop what they hold before going on
            if not waiting[edge]:
                _visit(edge, sums.pop(edge), todo, later if deferring else todo, meter)

    run([(root.edge, grad, None)], defer_weights)
    return (lambda: run(later, False)) if defer_weights else None


def _visit(node: Node, grad: Array, todo: list, weights: list, meter) -> None:
    """Run one node's backward; put what it returns on the lists, weight gradients to be next."""
    name, ctx = node.function.__name__, node.ctx
    if meter and ctx.backward_flops is None:
        raise RuntimeError(f"a meter is running, but none ran when {name} was computed: let it run "
                           "during the forward too")
    start = meter.start() if meter else None
    pieces = node.function.backward(ctx, grad)
    if len(pieces) != len(node.edges):
        raise RuntimeError(f"{name}.backward returned {len(pieces)} gradients for "
                           f"{len(node.edges)} inputs")
    if meter:
        flops = ctx.backward_flops
        done = [i for i, edge in enumerate(node.edges) if edge and not callable(pieces[i])]
        meter.stop(start, name, "backward", sum(flops[i] for i in done),
                   (grad, *[pieces[i] for i in done]) if done else ())
    for is_weight in (False, True):
        for i, (edge, piece) in enumerate(zip(node.edges, pieces)):
            if edge is None or edge.weight_only != is_weight:
                continue
            if piece is None:
                raise RuntimeError(f"{name}.backward returned None for input {i}, which needs a "
                                   "gradient")
            charge = (name, "weights" if is_weight else "backward", flops[i], (grad,)) if meter \
                else None
            (weights if is_weight else todo).append((edge, piece, charge))
    node.ctx = node.edges = None


def _count_consumers(start: Edge) -> dict[Edge, int]:
    """How many contributions each node and slot below `start` will receive."""
    waiting, stack = {start: 1}, [start]
    while stack:
        edge = stack.pop()
        if isinstance(edge, GradientSlot):
            continue
        if edge.edges is None:
            raise RuntimeError("backward() went through this graph before and freed it: run the "
                               "forward again, or add the losses and call backward() once")
        for target in edge.edges:
            if target is None:
                continue
            if target not in waiting:
                waiting[target] = 0
                stack.append(target)
            waiting[target] += 1
    return waiting
