"""Reverse-mode automatic differentiation: a graph of function calls, walked once, backwards.

    x ──┐                     forward:  y = f(x, w), and f saves the arrays its derivative will need
        ├─▶ Node(f) ◀── y     backward: f turns dL/dy into dL/dx and dL/dw
    w ──┘

The walk visits each node once, after all of its consumers, and frees what the node saved.  Weight
gradients are computed before dx, so that their reduction can start early.

Source: Griewank & Walther, Evaluating Derivatives (2008), chapter 3.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..backend import Array, record_allocation
from .graph import count_consumers
from .meter import Meter, current_meter
from .tensor import GradientSlot, GradTarget, Node, Tensor

Gradient = Array | Callable[[], Array]          # a gradient, or the function that computes it
Gradients = list[tuple[GradTarget, Gradient]]         # on their way


def backward(root: Tensor, grad: Array | None = None, defer_weights: bool = False,
             poll: Callable[[], None] | None = None) -> Callable[[], None] | None:
    """Compute the gradient of every leaf below `root` and free the graph.

    With `defer_weights`, everything that leads only to parameters (casts, masks and gathers
    included) is left undone and returned as a function to call later: the W of zero-bubble
    pipelines.  `poll` is called between operations, to advance messages.  Raises RuntimeError if
    nothing needs a gradient, or if the graph was walked before.
    """
    target, grad = initial_gradient(root, grad)
    walk = Walk(target, poll)
    if not defer_weights:
        walk.run([(target, grad)])
        return None
    deferred: Gradients = []
    walk.run([(target, grad)], deferred)
    deferred.reverse()              # run takes from the end: now the first that was deferred
    return lambda: walk.run(deferred)


class Walk:
    """One walk over the graph below `root`, with the sums of gradients that are not complete."""

    def __init__(self, root: GradTarget, poll: Callable[[], None] | None = None):
        self.num_pending = count_consumers(root)
        self.accumulated: dict[Node, Array] = {}
        self.owned: set[Node] = set()       # whose sum was allocated here: added to in place
        self.poll, self.meter = poll, current_meter()

    def run(self, ready: Gradients, deferred: Gradients | None = None) -> None:
        """Bring every gradient to its target; a target that has all of them passes them on.

        With `deferred`, the gradients of weights are put there instead of being computed.
        """
        weight_grads = ready if deferred is None else deferred
        while ready:
            if self.poll is not None:
                self.poll()
            target = self.accumulate(*ready.pop())      # last in, first out
            self.num_pending[target] -= 1
            if self.num_pending[target] == 0:           # all consumers have contributed
                self.complete(target, ready, weight_grads)

    def accumulate(self, target: GradTarget, grad: Gradient) -> GradTarget:
        """Add a gradient, or the result of the function that computes it; return the target."""
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
        return target

    def complete(self, target: GradTarget, ready: Gradients, weight_grads: Gradients) -> None:
        """Call the ready hooks of a leaf; run a node's backward, and free the node.

        The gradients of its inputs are put on `ready`, then those of weights on `weight_grads`.
        """
        if isinstance(target, GradientSlot):
            for hook in target.ready_hooks:
                hook(target)
            return
        grads = run_backward(target, self.accumulated.pop(target), self.meter)
        found = [(to, grad) for to, grad in zip(target.inputs, grads) if to is not None]
        target.ctx = target.inputs = None
        ready += [pair for pair in found if not pair[0].weight_only]
        weight_grads += [pair for pair in found if pair[0].weight_only]


def run_backward(node: Node, grad: Array, meter: Meter | None) -> Sequence[Gradient | None]:
    """The gradients of the inputs of `node`; `meter`, if there is one, is told of the work."""
    function = node.function
    if meter is None or not function.metered:
        grads = function.backward(node.ctx, grad)
    else:
        grads = run_metered(node, grad, meter)
    if len(grads) != len(node.inputs):
        raise RuntimeError(f"{function.__name__}.backward returned {len(grads)} gradients for "
                           f"{len(node.inputs)} inputs")
    for i, target in enumerate(node.inputs):
        if target is not None and grads[i] is None:
            raise RuntimeError(f"{function.__name__}.backward returned None for input {i}, which "
                               "needs a gradient")
    return grads


def run_metered(node: Node, grad: Array, meter: Meter) -> Sequence[Gradient | None]:
    """`node`'s backward; reports what it computed at once, and later what its functions compute."""
    name, flops = node.function.__name__, node.ctx.backward_flops
    if flops is None:
        raise RuntimeError(f"a meter is running, but none ran when {name} was computed: let it run "
                           "during the forward too")
    start = meter.start()
    grads = node.function.backward(node.ctx, grad)
    done = [i for i, (target, result) in enumerate(zip(node.inputs, grads))
            if target is not None and not callable(result)]
    meter.stop(start, name, "backward", sum(flops[i] for i in done),
               (grad, *[grads[i] for i in done]) if done else ())

    def metered(pullback: Callable[[], Array], phase: str, num_flops: int) -> Array:
        start = meter.start()
        result = pullback()
        meter.stop(start, name, phase, num_flops, (grad, result))
        return result

    return [partial(metered, result, "weights" if target.weight_only else "backward", flops[i])
            if target is not None and callable(result) else result
            for i, (target, result) in enumerate(zip(node.inputs, grads))]


def initial_gradient(root: Tensor, grad: Array | None) -> tuple[GradTarget, Array]:
    """The target and the gradient that backward starts from: `grad`, or 1 for a single number."""
    if root.grad_target is None:
        raise RuntimeError("backward() from a tensor that depends on nothing with "
                           "requires_grad=True (or that was made under no_grad)")
    if grad is None:
        if root.size != 1:
            raise RuntimeError(f"backward() of a tensor of shape {root.shape} needs the gradient "
                               "of the same shape: only a single number has the obvious one, 1")
        return root.grad_target, np.ones_like(root.data)
    if (grad.shape, grad.dtype) != (root.shape, root.dtype):
        raise ValueError(f"backward() of a tensor {root.shape} {root.dtype} needs a gradient of "
                         f"the same shape and dtype, not {grad.shape} {grad.dtype}")
    return root.grad_target, grad
