"""The graph below a tensor: the consumers of each node, the leaves, an order of all nodes."""

from collections.abc import Iterator

from .errors import changed_leaf_error, freed_graph_error
from .tensor import GradientSlot, GradTarget, Tensor


def count_consumers(start: GradTarget) -> dict[GradTarget, int]:
    """The number of gradients that each node and slot from `start` on will receive.

    Raises RuntimeError if backward freed the graph, or if a parameter changed after its use.
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


def topological_order(start: GradTarget) -> Iterator[GradTarget]:
    """Every node and leaf from `start` on once, each after its inputs."""
    done, stack = set(), [(start, False)]
    while stack:
        target, inputs_done = stack.pop()
        if target in done:
            continue
        if inputs_done or isinstance(target, GradientSlot):
            done.add(target)
            yield target
        else:
            stack.append((target, True))
            stack.extend((below, False) for below in reversed(target.inputs) if below is not None)
