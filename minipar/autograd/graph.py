"""The graph to be looked at: by pictures, by checks; the engine walks it in its own way."""

from collections.abc import Iterator

from .tensor import Edge, GradientSlot


def inputs_first(root: Edge) -> Iterator[Edge]:
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
