"""The graph below a tensor: the consumers of each node, the leaves, an order of all nodes."""

from collections.abc import Iterator

from .tensor import Edge, GradientSlot, Tensor


def count_consumers(root: Edge) -> dict[Edge, int]:
    """The number of gradients that each node and slot below `root` will receive.

    Raises RuntimeError if backward freed the graph.
    """
    num_consumers, stack = {root: 1}, [root]
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
            if target not in num_consumers:
                num_consumers[target] = 0
                stack.append(target)
            num_consumers[target] += 1
    return num_consumers


def reachable_slots(root: Tensor) -> set[GradientSlot]:
    """The slots of all leaves that backward from `root` brings a gradient to."""
    edges = () if root.edge is None else count_consumers(root.edge)
    return {edge for edge in edges if isinstance(edge, GradientSlot)}


def topological_order(root: Edge) -> Iterator[Edge]:
    """Every node and leaf below `root` once, each after its inputs."""
    done, stack = set(), [(root, False)]
    while stack:
        edge, inputs_done = stack.pop()
        if edge in done:
            continue
        if inputs_done or isinstance(edge, GradientSlot):
            done.add(edge)
            yield edge
        else:
            stack.append((edge, True))
            stack.extend((e, False) for e in reversed(edge.edges) if e is not None)
