"""The ranks of a mesh in their nodes, and what each axis sends over each link.

    ┌ node 0 ──────┐     ┌ node 1 ──────┐
    │  0 ══════ 1  │     │  4 ══════ 5  │       one colour for each axis; the thicker a line, the
    │  │        │──┼─────┼──│        │  │       more bytes, both ways together
    │  2 ══════ 3  │     │  6 ══════ 7  │
    └──────────────┘     └──────────────┘

Links between nodes are the slow ones: an axis should cross them with few bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ..units import in_bytes
from .colors import BLACK, BLUE, DARK, GREEN, LIGHT, ORANGE
from .figure import empty_figure, save

COLORS = {"pp": BLUE, "dp": ORANGE, "tp": GREEN}
THICKEST = 9.0


class MeshTraffic(NamedTuple):
    """One panel: a mesh's `shape` from slowest to fastest axis, three of them, the ranks of a
    node, {axis: {(source, dest): bytes}}, and a title."""

    shape: Mapping[str, int]
    ranks_per_node: int
    traffic: Mapping[str, Mapping[tuple[int, int], int]]
    title: str


def draw_mesh_traffic(path: str | Path, panels: Sequence[MeshTraffic], title: str = "") -> Path:
    """Draw the panels side by side; line widths compare across them.  Returns the path written."""
    figure = empty_figure(4.6 * len(panels), 3.5, title)
    heaviest = max(sum(pair) for panel in panels for links in panel.traffic.values()
                   for pair in _both_ways(links).values())
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _draw(axes, panel, heaviest)
    return save(figure, path)


def _both_ways(links: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Bytes there and back of each pair of ranks."""
    return {(a, b): (links.get((a, b), 0), links.get((b, a), 0))
            for a, b in sorted({(min(link), max(link)) for link in links})}


def _draw(axes: Axes, panel: MeshTraffic, heaviest: int) -> None:
    slow, middle, fast = panel.shape.values()
    grid = np.arange(slow * middle * fast).reshape(slow, middle, fast)
    places = {int(grid[i, j, k]): (i * (1.2 * fast + 0.4) + 1.2 * k, -1.2 * j - 0.25 * k)
              for i, j, k in np.ndindex(grid.shape)}
    for first in range(0, grid.size, panel.ranks_per_node):
        xs, ys = zip(*(places[rank] for rank in range(first, first + panel.ranks_per_node)))
        corner = min(xs) - 0.33, min(ys) - 0.33
        axes.add_patch(FancyBboxPatch(
            corner, max(xs) - min(xs) + 0.66, max(ys) - min(ys) + 0.66, zorder=0,
            boxstyle="round,pad=0,rounding_size=0.15", facecolor=LIGHT, edgecolor="none"))
        axes.text(corner[0] + 0.08, corner[1] - 0.08, f"node {first // panel.ranks_per_node}",
                  fontsize=9, color=DARK, va="top")
    handles = []
    for axis in panel.shape:
        links = panel.traffic.get(axis, {})
        total = sum(links.values())
        color = COLORS.get(axis, BLACK)
        for (a, b), pair in _both_ways(links).items():
            bend = 0.0                      # past the ranks between, above or below them
            if abs(places[a][0] - places[b][0]) > 1.3:
                bend = -0.13 if a % fast < fast / 2 else 0.13
            axes.add_patch(FancyArrowPatch(
                places[a], places[b], arrowstyle="-", color=color, zorder=1, shrinkA=0, shrinkB=0,
                connectionstyle=f"arc3,rad={bend}",
                linewidth=max(1.0, THICKEST * sum(pair) / heaviest)))
        handles.append(Line2D([], [], color=color, linewidth=4,
                              label=f"{axis}: {in_bytes(total)}"))
    for rank, (x, y) in places.items():
        axes.plot(x, y, "o", color="white", markeredgecolor=BLACK, markersize=15, zorder=3)
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=9, zorder=4)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), frameon=False,
                ncols=3, fontsize=9, handlelength=1.2, columnspacing=1.2)
    axes.set_title(panel.title, fontsize=10)
    axes.set_aspect("equal")
    axes.margins(0.09)
    axes.autoscale_view()
    axes.axis("off")
