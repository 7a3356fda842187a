"""Numbers of ranks: bytes through each rank, over links, by part; a map of any other number.

    rank 0  ████████████████          draw_rank_traffic: one bar a rank and a program, sent and
    rank 1  ███                       received together.  The busiest rank sets the time.

    ┌ node 0 ──────┐     ┌ node 1 ──────┐
    │  0 ══════ 1  │     │  4 ══════ 5  │       draw_mesh_traffic: one colour for each axis; the
    │  │        │──┼─────┼──│        │  │       thicker a line, the more bytes, both ways together
    │  2 ══════ 3  │     │  6 ══════ 7  │
    └──────────────┘     └──────────────┘

    pp 0   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓           draw_rank_map: a row for each stage of a pipeline, a column
    pp 1   ▒▒▒▒▒▒▒▒▒█▒▒▒▒▒▒           for each rank of a stage; one of them is slow

Links between nodes are the slow ones: an axis should cross them with few bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ...units import in_bytes
from ..colors import BLACK, BLUE, DARK, GREEN, LIGHT, ORANGE, PALETTE, RED
from ..figure import empty_figure, in_units, new_figure, new_panels, save, tidy, whole_numbers

COLORS = {"pp": BLUE, "dp": ORANGE, "tp": GREEN}
THICKEST = 9.0


class MeshTraffic(NamedTuple):
    """One panel: the `traffic`, {axis: {(source, dest): bytes}}, of a mesh.

    `shape` has three axes, from the slowest to the fastest.
    """

    shape: Mapping[str, int]
    ranks_per_node: int
    traffic: Mapping[str, Mapping[tuple[int, int], int]]
    title: str


def draw_rank_traffic(path: str | Path, loads: Mapping[str, Sequence[int]], title: str,
                      growth: Mapping[str, Mapping[int, tuple[int, int]]]) -> Path:
    """Draw `loads`, bytes through each rank by program; return the path written.

    `growth` has the bytes through the busiest rank (predicted, counted), by program and number of
    ranks; they are drawn as a line and dots.  Raises ValueError if the programs ran on different
    numbers of ranks.
    """
    num_ranks = {len(load) for load in loads.values()}
    if len(num_ranks) != 1:
        raise ValueError(f"programs on {sorted(num_ranks)} ranks: give each a load for every rank")
    figure, [[bars, curves]] = new_panels(11, 4.2, title, columns=2, grid="y")
    width, colors = 0.8 / len(loads), dict(zip(loads, PALETTE))
    for i, (name, load) in enumerate(loads.items()):
        places = np.arange(len(load)) + (i - (len(loads) - 1) / 2) * width
        bars.bar(places, load, width * 0.94, color=colors[name], label=name)
    for name, counts in growth.items():
        predicted, counted = zip(*counts.values())
        curves.plot(list(counts), predicted, color=colors[name], label=f"{name}, predicted")
        curves.plot(list(counts), counted, "o", color=colors[name], label=f"{name}, counted")
    for axes, title, x in ((bars, "through each rank", "rank"),
                           (curves, "through the busiest rank", "ranks")):
        axes.set_title(title, loc="left", fontsize=10.5)
        axes.set(xlabel=x, ylabel="sent + received in a step")
        axes.set_ylim(0)
        in_units(axes.yaxis, "B")
        whole_numbers(axes.xaxis)
        axes.legend(frameon=False, fontsize=9)
    return save(figure, path)


def draw_stacked_bars(path: str | Path, bars: Mapping[str, Mapping[str, float]],
                      measured: Mapping[str, float], title: str = "", label: str = "bytes",
                      limit: float | None = None) -> Path:
    """Draw each of `bars`, {name: {part: bytes}}, and a diamond at its measured total.

    Parts have the same colour in all bars, in the order of their first appearance.  A `limit` is a
    line.  Without any measured total there are no diamonds.  Returns the path written.  Raises
    ValueError for a bar that was not measured while others were.
    """
    missing = [name for name in bars if measured and name not in measured]
    if missing or not bars:
        raise ValueError(f"no measured total for {', '.join(missing) or 'any bar'}: give one each")
    figure, axes = new_figure(2.2 + 1.75 * len(bars), 4.6, title)
    names = list(bars)
    totals = [measured.get(name, sum(bars[name].values())) for name in bars]
    bottom = np.zeros(len(bars))
    for i, part in enumerate(dict.fromkeys(part for bar in bars.values() for part in bar)):
        heights = np.array([bar.get(part, 0.0) for bar in bars.values()])
        axes.bar(names, heights, bottom=bottom, width=0.6, color=PALETTE[i % len(PALETTE)],
                 edgecolor="white", label=part, zorder=2)
        bottom += heights
    if measured:
        axes.plot(names, totals, "D", color=BLACK, markersize=7, markeredgecolor="white",
                  label="measured, all of it", zorder=3)
    if limit is not None:
        axes.axhline(limit, color=RED, linestyle="--", linewidth=1.2, label="limit", zorder=1)
    for name, total, top in zip(names, totals, np.maximum(bottom, totals)):
        axes.annotate(in_bytes(total), (name, top), xytext=(0, 7), textcoords="offset points",
                      ha="center", va="bottom", fontsize=9)
    axes.set(ylim=(0, max(*bottom, *totals, limit or 0) * 1.12), ylabel=label)
    in_units(axes.yaxis, "B")
    tidy(axes, "y")
    axes.legend(reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                fontsize=9)
    return save(figure, path)


def draw_mesh_traffic(path: str | Path, panels: Sequence[MeshTraffic], title: str = "") -> Path:
    """Draw the panels side by side, with one scale of line widths; return the path written."""
    figure = empty_figure(4.6 * len(panels), 3.5, title)
    heaviest = max(num_bytes for mesh in panels for links in mesh.traffic.values()
                   for num_bytes in _both_ways(links).values())
    for axes, mesh in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _draw_mesh(axes, mesh, heaviest)
    return save(figure, path)


def _both_ways(links: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Bytes there and back between each pair of ranks."""
    return {(a, b): links.get((a, b), 0) + links.get((b, a), 0)
            for a, b in sorted({(min(link), max(link)) for link in links})}


def _draw_mesh(axes: Axes, mesh: MeshTraffic, heaviest: int) -> None:
    slow, middle, fast = mesh.shape.values()
    places = [(i * (1.2 * fast + 0.4) + 1.2 * k, -1.2 * j - 0.25 * k)
              for i, j, k in np.ndindex(slow, middle, fast)]
    for first in range(0, len(places), mesh.ranks_per_node):
        node = np.array(places[first:first + mesh.ranks_per_node])
        corner, size = node.min(axis=0) - 0.33, np.ptp(node, axis=0) + 0.66
        axes.add_patch(FancyBboxPatch(corner, *size, zorder=0, facecolor=LIGHT, edgecolor="none",
                                      boxstyle="round,pad=0,rounding_size=0.15"))
        axes.text(corner[0] + 0.08, corner[1] - 0.08, f"node {first // mesh.ranks_per_node}",
                  fontsize=9, color=DARK, va="top")
    handles = []
    for axis in mesh.shape:
        links, color = mesh.traffic.get(axis, {}), COLORS.get(axis, BLACK)
        for (a, b), num_bytes in _both_ways(links).items():
            bend = 0.0                      # past the ranks between, above or below them
            if abs(places[a][0] - places[b][0]) > 1.3:
                bend = -0.13 if a % fast < fast / 2 else 0.13
            axes.add_patch(FancyArrowPatch(
                places[a], places[b], arrowstyle="-", color=color, zorder=1, shrinkA=0, shrinkB=0,
                connectionstyle=f"arc3,rad={bend}",
                linewidth=max(1.0, THICKEST * num_bytes / heaviest)))
        handles.append(Line2D([], [], color=color, linewidth=4,
                              label=f"{axis}: {in_bytes(sum(links.values()))}"))
    for rank, (x, y) in enumerate(places):
        axes.plot(x, y, "o", color="white", markeredgecolor=BLACK, markersize=15, zorder=3)
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=9, zorder=4)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), frameon=False,
                ncols=3, fontsize=9, handlelength=1.2, columnspacing=1.2)
    axes.set_title(mesh.title, fontsize=10)
    axes.set_aspect("equal")
    axes.margins(0.09)
    axes.autoscale_view()
    axes.axis("off")


def draw_rank_map(path: str | Path, panels: Mapping[str, np.ndarray], title: str = "") -> Path:
    """Draw an array (stages, ranks of a stage) of numbers for each of `panels`.

    Returns the path written.  Raises ValueError without panels.
    """
    if not panels:
        raise ValueError("nothing to draw: give at least one panel (stages, ranks of a stage)")
    rows = next(iter(panels.values())).shape[0]
    figure = empty_figure(9, 1.0 + len(panels) * max(1.6, 0.9 + 0.16 * min(rows, 40)), title)
    for axes, (name, grid) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0],
                                  panels.items()):
        image = axes.imshow(grid, aspect="auto", cmap="viridis", interpolation="nearest")
        axes.set_title(f"{name}: {grid.min():.3g} to {grid.max():.3g}", loc="left", fontsize=10)
        axes.set(ylabel="stage", xlabel="rank of the stage")
        whole_numbers(axes.yaxis)
        whole_numbers(axes.xaxis)
        figure.colorbar(image, ax=axes, pad=0.02)
    return save(figure, path)
