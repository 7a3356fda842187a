"""The autograd graph as a picture: each function, its inputs, and the arrays that it saved.

    x ──▶ Linear ──▶ Relu ──▶ Linear ──▶ CrossEntropy       forward made it from left to right;
    w₁ ──▶   b₁ ─┘        w₂ ──▶                            backward walks it from right to left

A box names the arrays that its function saved for backward, and counts the bytes of each array that
no box before it had saved.  So the bytes of all boxes add up to the activations kept for backward.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from ...autograd.engine import backward_order
from ...autograd.tensor import GradientSlot
from ...units import in_bytes
from ..colors import BLACK, BLUE, DARK, GREEN
from ..figure import new_figure, save


class GraphNode(NamedTuple):
    """A function or a leaf of the graph.

    `inputs` are the indices of the nodes its inputs come from.  `out` is the name and shape of its
    output, if known; `keeps` are the names or shapes of the arrays it saved.  `num_bytes` counts
    the activations that no node before it had saved.
    """

    name: str
    is_leaf: bool
    inputs: list[int]
    out: str
    keeps: list[str]
    num_bytes: int


def graph_nodes(root: Any, names: Mapping[str, Any]) -> list[GraphNode]:
    """The boxes behind the Tensor `root`, each after its inputs; `names` are Tensors by name."""
    made_by = {id(t.grad_target): f"{name} {_shape(t.data)}".strip()
               for name, t in names.items() if t.grad_target}
    called = {id(t.data): name for name, t in names.items()}
    seen = {id(_owner(t.data)) for t in names.values()
            if _is_leaf(t.grad_target) and t.grad_target.weight_only}
    boxes, index = [], {}
    for target in reversed([*backward_order(root.grad_target)]):
        index[id(target)] = len(boxes)
        out = made_by.get(id(target), "")
        if _is_leaf(target):
            boxes.append(GraphNode(out or "leaf", True, [], out, [], 0))
            continue
        arrays = [saved() for saved in target.ctx.saved if saved.item is not None]
        new = {id(owner): owner.nbytes for owner in map(_owner, arrays) if id(owner) not in seen}
        seen |= set(new)
        boxes.append(GraphNode(target.function.__name__, False,
                         [index[id(below)] for below in target.inputs if below],
                         out, [called.get(id(a), _shape(a)) for a in arrays],
                         sum(new.values())))
    return boxes


def _shape(array: Any) -> str:
    return f"({', '.join(map(str, array.shape))})" if array.shape else ""


def _owner(array: Any) -> Any:
    """The array that owns the memory."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def _is_leaf(target: Any) -> bool:
    return isinstance(target, GradientSlot)


def draw_autograd_graph(path: str | Path, root: Any, names: Mapping[str, Any],
                        title: str = "") -> Path:
    """Draw the graph behind the Tensor `root` (before its backward); return the path written.

    `names` are the Tensors that the reader knows by a name; the others appear by their shapes.
    """
    boxes = graph_nodes(root, names)
    places = _place(boxes)
    columns, rows = (max(place[i] for place in places) + 1 for i in (0, 1))
    figure, axes = new_figure(0.8 + 1.75 * columns, 1.2 + 0.75 * rows, title)
    drawn = [_draw_box(axes, box, place) for box, place in zip(boxes, places)]
    axes.set_xlim(-0.5, columns - 0.2)
    axes.set_ylim(rows - 0.5, -0.65)
    axes.set_axis_off()
    axes.text(0, -0.02, "backward walks the arrows from right to left.   green: parameters   blue: "
              "functions, and what they keep for backward:\n"
              f"{sum(box.num_bytes for box in boxes):,} bytes of activations in all",
              fontsize=8.5, color=DARK, transform=axes.transAxes, va="top")
    figure.draw_without_rendering()         # now the boxes know their sizes: arrows end at them
    for box, target, to in zip(boxes, drawn, places):
        for source in box.inputs:
            _draw_arrow(axes, places[source], to, drawn[source], target)
    x, y = places[-1]
    _draw_arrow(axes, (x, y), (x + 0.75, y), drawn[-1], None)
    return save(figure, path)


def _draw_arrow(axes: Axes, start: tuple, end: tuple, source: Any, target: Any) -> None:
    """Draw an arrow between two boxes; along one row, past other boxes, it is an arc."""
    bend = -0.25 if end[0] - start[0] > 1 and end[1] == start[1] else 0.0
    axes.annotate("", end, start, zorder=1, arrowprops={
        "arrowstyle": "-|>", "color": DARK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 1,
        "patchA": source, "patchB": target, "connectionstyle": f"arc3,rad={bend}"})


def _draw_box(axes: Axes, box: GraphNode, place: tuple[int, int]) -> Any:
    x, y = place
    lines = [box.name] + ([f"keeps {', '.join(box.keeps)}"] if box.keeps else [])
    lines += [f"+ {in_bytes(box.num_bytes)}"] if box.num_bytes else []
    if box.out and not box.is_leaf:
        axes.annotate(box.out, (x + 0.5, y), xytext=(0, 4), textcoords="offset points",
                      ha="center", va="bottom", fontsize=8, color=BLACK)
    text = axes.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=8, color="white",
                     zorder=3, linespacing=1.35,
                     bbox={"boxstyle": "round,pad=0.5", "edgecolor": "none",
                           "facecolor": GREEN if box.is_leaf else BLUE})
    return text.get_bbox_patch()


def _place(boxes: list[GraphNode]) -> list[tuple[int, int]]:
    """(column, row) of each box: one column before the first of its users, leaves further down."""
    users: list[list[int]] = [[] for _ in boxes]
    for i, box in enumerate(boxes):
        for source in box.inputs:
            users[source].append(i)
    column = [0] * len(boxes)
    for i in reversed(range(len(boxes))):
        column[i] = min((column[user] for user in users[i]), default=1) - 1
    row = [0] * len(boxes)
    taken: set[tuple[int, int]] = set()
    functions = [i for i in reversed(range(len(boxes))) if not boxes[i].is_leaf]
    for i in functions + [i for i, box in enumerate(boxes) if box.is_leaf]:
        row[i] = min((row[user] for user in users[i]), default=0) + boxes[i].is_leaf
        while (column[i], row[i]) in taken:
            row[i] += 1
        taken.add((column[i], row[i]))
    return [(c - min(column), r) for c, r in zip(column, row)]
