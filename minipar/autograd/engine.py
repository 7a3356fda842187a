"""Reverse-mode automatic differentiation: a graph of function calls, walked once, backwards.

    x ──┐                     forward:  y = f(x, w), and f saves the arrays its derivative will need
        ├─▶ Node(f) ◀── y     backward: f turns dL/dy into dL/dx and dL/dw
    w ──┘

The walk visits each node once, after all of its consumers, and frees what the node saved.  Weight
gradients are computed before dx, so that their reduction can start early.

Source: Griewank & Walther, Evaluating Derivatives (2008), chapter 3.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..backend import Array, record_allocation
from .errors import (
    changed_leaf_error,
    freed_graph_error,
    no_initial_gradient_error,
    wrong_gradients_error,
)
from .meter import Meter, current_meter
from .tensor import GradientSlot, GradTarget, Node, Tensor

Gradient = Array | Callable[[], Array]          # a gradient, or the function that computes it
Gradients = list[tuple[GradTarget, Gradient]]         # on their way


def backward(root: Tensor, grad: Array | None = None, defer_weights: bool = False,
             poll: Callable[[], None] | None = None) -> Callable[[], None] | None:
    """Compute the gradient of every leaf below `root` and free the graph.

    `grad` is dL/d root; it may be left out for a single number.  With `defer_weights`, what leads
    only to parameters (casts, masks and gathers too) is left undone.  The returned function does it
    later: the W of zero-bubble pipelines.  `poll` is called between operations, to advance
    messages.  Raises RuntimeError if nothing needs a gradient, if the graph was walked before, or
    if a parameter has changed since forward.  Raises ValueError for a `grad` of a different shape
    or dtype.
    """
    target, grad = initial_gradient(root, grad)
    walk, deferred = Walk(target, poll), [] if defer_weights else None
    walk.run([(target, grad)], deferred)
    if deferred is None:
        return None
    deferred.reverse()              # run pops from the end: first deferred, first computed
    return lambda: walk.run(deferred)


class Walk:
    """One walk over the graph from `start`, with the sums of incomplete gradients."""

    def __init__(self, start: GradTarget, poll: Callable[[], None] | None = None):
        self.missing = count_consumers(start)       # contributions still to come, by target
        self.accumulated: dict[Node, Array] = {}
        self.owned: set[Node] = set()       # nodes whose sum was allocated here: add in place
        self.poll, self.meter = poll, current_meter()

    def run(self, stack: Gradients, deferred: Gradients | None = None) -> None:
        """Bring every gradient to its target; once a target has all, its backward runs.

        With `deferred`, the gradients of weights are put there instead of being computed.
        """
        weight_grads = stack if deferred is None else deferred
        while stack:
            if self.poll is not None:
                self.poll()
            target = stack[-1][0]                       # last in, first out
            # bind the popped gradient to no name: it would keep its saved arrays alive
            self.accumulate(*stack.pop())
            self.missing[target] -= 1
            if self.missing[target] == 0:           # all consumers have contributed
                self.complete(target, stack, weight_grads)

    def accumulate(self, target: GradTarget, grad: Gradient) -> None:
        """Add a gradient, or the result of the function that computes it."""
        if callable(grad):
            grad = record_allocation("temporaries", grad())
        if isinstance(target, GradientSlot):
            target.accumulate(grad)
        elif target not in self.accumulated:
            self.accumulated[target] = grad       # perhaps an alias of another gradient: read only
        elif target in self.owned:
            self.accumulated[target] += grad
        else:
            self.accumulated[target] = self.accumulated[target] + grad
            self.owned.add(target)

    def complete(self, target: GradTarget, stack: Gradients, weight_grads: Gradients) -> None:
        """Call the ready hooks of a leaf; run a node's backward, and free the node.

        The gradients of its inputs go to `stack`, the gradients of weights to `weight_grads`.  Both
        are the same list unless weights are deferred.  Weights are pushed last, so popped first.
        """
        if isinstance(target, GradientSlot):
            for hook in target.ready_hooks:
                hook(target)
            return
        grads = run_backward(target, self.accumulated.pop(target), self.meter)
        of_weights: Gradients = []
        for below, grad in zip(target.inputs, grads):
            if below is not None:
                if grad is None:
                    raise wrong_gradients_error(target, grads)
                (of_weights if below.weight_only else stack).append((below, grad))
        target.ctx = target.inputs = None
        weight_grads += of_weights


def run_backward(node: Node, grad: Array, meter: Meter | None) -> Sequence[Any]:
    """The gradient of each of a node's inputs, or the function that computes it."""
    function = node.function
    grads = meter.backward(node, grad) if meter and function.metered \
        else function.backward(node.ctx, grad)
    if len(grads) != len(node.inputs):
        raise wrong_gradients_error(node, grads)
    return grads


def initial_gradient(root: Tensor, grad: Array | None) -> tuple[GradTarget, Array]:
    """The target and the gradient that backward starts from: `grad`, or 1 for a single number."""
    if grad is None and root.size == 1:
        grad = np.ones_like(root.data)
    if root.grad_target is None or grad is None or \
            (grad.shape, grad.dtype) != (root.shape, root.dtype):
        raise no_initial_gradient_error(root, grad)
    return root.grad_target, grad


def count_consumers(start: GradTarget) -> dict[GradTarget, int]:
    """The number of gradients that each node and slot from `start` on will receive.

    Raises RuntimeError if backward freed the graph, or if a leaf changed after its use.
    """
    num_consumers, stack = {start: 1}, [start]
    while stack:
        target = stack.pop()
        if target.inputs is None:
            raise freed_graph_error()
        for below in target.inputs:
            if below is not None and below.changed_at > target.made_at:
                raise changed_leaf_error(target)
            if below in num_consumers:
                num_consumers[below] += 1
            elif below is not None:
                num_consumers[below] = 1
                stack.append(below)
    return num_consumers


def reachable_slots(root: Tensor) -> set[GradientSlot]:
    """The slots of all leaves that backward from `root` brings a gradient to."""
    targets = () if root.grad_target is None else count_consumers(root.grad_target)
    return {target for target in targets if isinstance(target, GradientSlot)}


def backward_order(start: GradTarget) -> Iterator[GradTarget]:
    """Every node and leaf from `start` on once, in the order in which backward completes them."""
    missing, stack = count_consumers(start), [start]
    while stack:
        target = stack.pop()
        missing[target] -= 1
        if missing[target] == 0:
            inputs = [below for below in target.inputs if below is not None]
            stack += sorted(inputs, key=lambda below: below.weight_only)    # weights: popped first
            yield target
