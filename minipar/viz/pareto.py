"""Quality against size: labelled points, and the front of points that none beats in both.

    quality │        ● b ─ ─ ● dense       labels keep clear of points and of each other
            │   ● a
            │        ○ c
            └─────────────────── bytes, log

A point outside of the front is no choice: another one is smaller, and at least as good.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

from ..units import byte_unit
from .colors import BLACK, BLUE, GREY, LIGHT
from .figure import empty_figure, save, tidy

RADII = (5, 10, 16, 24, 34, 46, 60, 76)        # of places for a label around its point, in points
ANGLES = np.radians(np.arange(0, 360, 30))
GAP, POINT = 6.0, 5.0                       # pixels between two labels; half of a point


class ParetoPanel(NamedTuple):
    """One pair of axes: by name (bytes, quality, its spread), and which way is better."""

    title: str
    quality: str
    points: Mapping[str, tuple[float, float, float]]
    more_is_better: bool = True


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points (cost, quality) that no other beats in both, by cost."""
    best, names = -np.inf, []
    for name, (_, quality) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if quality > best:
            best = quality
            names.append(name)
    return names


def front(panel: ParetoPanel) -> list[str]:
    """The names of the points on the panel's front, by bytes."""
    sign = 1 if panel.more_is_better else -1
    return pareto_front({name: (x, sign * y) for name, (x, y, _) in panel.points.items()})


def draw_pareto(path: str | Path, panels: Sequence[ParetoPanel], title: str = "") -> Path:
    """Draw the panels side by side; return the path written."""
    figure = empty_figure(6.4 * len(panels), 5.4, title)
    FigureCanvasAgg(figure)
    pairs = list(zip(np.atleast_1d(figure.subplots(1, len(panels))), panels))
    for axes, panel in pairs:
        _draw_points(axes, panel)
    figure.draw_without_rendering()         # now it is known where the points are
    figure.set_layout_engine("none")
    for axes, panel in pairs:
        _place_labels(axes, panel)
    return save(figure, path)


def _draw_points(axes: Axes, panel: ParetoPanel) -> None:
    best = front(panel)
    unit, size = byte_unit(max(x for x, _, _ in panel.points.values()))
    for name, (x, y, spread) in panel.points.items():
        color = BLUE if name in best else GREY
        axes.errorbar(x / size, y, yerr=spread, color=color, marker="o", markersize=6, capsize=2,
                      linewidth=1, zorder=3 + (name in best))
    axes.step([panel.points[n][0] / size for n in best], [panel.points[n][1] for n in best],
              where="post", color=BLUE, linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=8.5, which="both")
    axes.margins(x=0.16, y=0.12)
    if not panel.more_is_better:
        axes.invert_yaxis()
    axes.set_xlabel(f"bytes of the model in its file, {unit} (log)")
    axes.set_ylabel(f"{panel.quality} (up is better)")
    axes.set_title(f"{panel.title}: blue, none is better and smaller", loc="left", fontsize=10)
    tidy(axes, "both")
    axes.grid(color=LIGHT, linewidth=0.8, which="minor")


def _place_labels(axes: Axes, panel: ParetoPanel) -> None:
    """Each label where it first overlaps nothing, from near to far; a thin line leads to it.

    Where all places are taken it has the nearest.
    """
    figure, size = axes.figure, byte_unit(max(x for x, _, _ in panel.points.values()))[1]
    renderer, per_point = figure.canvas.get_renderer(), figure.dpi / 72
    data = {name: (x / size, y) for name, (x, y, _) in panel.points.items()}
    pixels = {name: axes.transData.transform(point) for name, point in data.items()}
    taken = [Bbox.from_bounds(x - POINT, y - POINT, 2 * POINT, 2 * POINT)
             for x, y in pixels.values()]
    for name in sorted(data, key=lambda name: tuple(pixels[name])):
        label = axes.annotate(name, data[name], xytext=(0, 0), textcoords="offset points",
                              ha="center", va="center", fontsize=8.5, color=BLACK, zorder=4)
        extent = label.get_window_extent(renderer)
        offset, box = next(_free_places(pixels[name], extent.width / 2, extent.height / 2,
                                        per_point, taken, axes.get_window_extent()),
                           ((0, 0), extent))
        taken.append(box)
        label.set_position((offset[0] / per_point, offset[1] / per_point))
        axes.annotate("", data[name], xytext=label.get_position(), textcoords="offset points",
                      arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7}, zorder=2)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})


def _free_places(point: Sequence[float], half_width: float, half_height: float, per_point: float,
                 taken: Sequence[Bbox], inside: Bbox) -> Iterator[tuple[tuple[float, float], Bbox]]:
    """(offset of a label's middle in pixels, its box) that overlap none of `taken`, near first."""
    for radius, angle in product(RADII, ANGLES):
        dx = (radius * per_point + half_width) * np.cos(angle)
        dy = (radius * per_point + half_height) * np.sin(angle)
        box = Bbox.from_extents(point[0] + dx - half_width, point[1] + dy - half_height,
                                point[0] + dx + half_width, point[1] + dy + half_height)
        if inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 \
                and box.y1 <= inside.y1 and not any(box.padded(GAP).overlaps(t) for t in taken):
            yield (dx, dy), box
