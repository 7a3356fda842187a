"""Reverse-mode automatic differentiation: a graph of function calls, walked once, backwards.

    x ──┐                     forward:  y = f(x, w), and f saves the arrays its derivative will need
        ├─▶ Node(f) ◀── y     backward: f turns dL/dy into dL/dx and dL/dw
    w ──┘

Every node is visited once, after all of its consumers; what it saved is freed as the walk passes.
Weight gradients come before dx, so that whoever waits for them (a message, say) can start early.

Source: Griewank & Walther, Evaluating Derivatives (2008), chapter 3.
"""

from collections.abc import Callable

import numpy as np

from ..backend import Array, record_allocation
from .meter import Meter, current_meter
from .tensor import Edge, GradientSlot, Node, Tensor


def backward(root: Tensor, grad: Array | None = None, defer_weights: bool = False,
             between: Callable[[], None] | None = None) -> Callable[[], None] | None:
    """Visit every node after all of its consumers, pass its gradient on, free it.

    With `defer_weights` all that leads only to parameters is left undone (casts, masks and gathers
    included) and comes back as a function to be called when there is time: the W of zero-bubble
    pipelines.  `between` is called between operations, to move messages on.  Raises RuntimeError
    if nothing needs a gradient, or if the graph was walked before.
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
    waiting = count_consumers(root.edge)
    sums: dict[Edge, Array] = {}
    ours: set[Edge] = set()         # sums that were allocated here, and may be added to in place
    later: list = []
    meter = current_meter()

    def run(todo: list, deferring: bool) -> None:
        while todo:
            if between is not None:
                between()
            edge, piece, charge = todo.pop()    # last in, first out: weights, then x, then upstream
            if callable(piece):
                start = meter.start() if charge else None
                piece = record_allocation("temporaries", piece())
                if charge:
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
    later.reverse()                 # so that weights have their gradients in the order of backward
    return (lambda: run(later, False)) if defer_weights else None


def _visit(node: Node, grad: Array, todo: list, weights: list, meter: Meter | None) -> None:
    """Run one node's backward; put what it returns on the lists, weight gradients to be next."""
    name, ctx = node.function.__name__, node.ctx
    meter = meter if node.function.metered else None
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


def slots_below(root: Tensor) -> set[GradientSlot]:
    """The leaves that backward from `root` will bring a gradient to."""
    return {edge for edge in count_consumers(root.edge) if isinstance(edge, GradientSlot)}


def count_consumers(start: Edge) -> dict[Edge, int]:
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
