"""The common parts of all pictures: one style of figures, one legend, one way to save."""

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, Locator, MaxNLocator, NullLocator

from ..atomic_files import replace_file
from .colors import BLACK, DARK, LIGHT


def new_figure(width: float, height: float, title: str = "") -> tuple[Figure, Axes]:
    """A figure of `width` by `height` inches with one pair of axes, the title at their left."""
    figure = empty_figure(width, height)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    tidy(axes)
    return figure, axes


def empty_figure(width: float, height: float, title: str = "") -> Figure:
    """A figure of `width` by `height` inches without axes, the title of all panels at its left."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure


def new_panels(width: float, height: float, title: str = "", rows: int = 1, columns: int = 1,
           grid: str = "", **layout: Any) -> tuple[Figure, np.ndarray]:
    """A figure of `width` by `height` inches, and its tidy axes (rows, columns).

    `layout` are other arguments of matplotlib's `subplots`.
    """
    figure = empty_figure(width, height, title)
    axes = figure.subplots(rows, columns, squeeze=False, **layout)
    for each in axes.flat:
        tidy(each, grid)
    return figure, axes


def figure_in_inches(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure and its only axes, whose units are inches from the upper left corner."""
    figure = Figure(figsize=(width, height), dpi=130)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return figure, axes


def tidy(axes: Axes, grid: str = "") -> None:
    """Hide the upper and the right border; draw a light grid along "x", "y" or "both"."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if grid:
        axes.grid(axis=grid, color=LIGHT, linewidth=0.8)        # type: ignore[arg-type]
        axes.set_axisbelow(True)


def whole_numbers(axis: Axis) -> None:
    """Label whole numbers only."""
    axis.set_major_locator(MaxNLocator(integer=True))


def in_units(axis: Axis, unit: str) -> None:
    """Label seconds ("s") or bytes ("B") as a person writes them: 20 µs, 4 kB."""
    axis.set_major_formatter(EngFormatter(unit))


def label_at(axis: Axis, locator: Locator, write: Callable[[float], str] = "{:g}".format) -> None:
    """Label the numbers that `locator` finds, as `write` writes them, and no others."""
    axis.set_major_locator(locator)
    axis.set_major_formatter(lambda value, _: write(value))
    axis.set_minor_locator(NullLocator())


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str = "",
        text_color: str = BLACK, fontsize: float = 8.5, **look: Any) -> None:
    """A rectangle from the corner (x, y), and a text in its middle."""
    axes.add_patch(Rectangle((x, y), width, height, **look))
    if text:
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center",
                  fontsize=fontsize, color=text_color, zorder=4)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], zorder: float = 4,
          **look: Any) -> None:
    """An arrow from `start` to `end`."""
    axes.annotate("", end, start, zorder=zorder, arrowprops={
        "arrowstyle": "-|>", "color": DARK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0, **look})


def legend_below(figure: Any, handles: Sequence[Any], columns: int) -> None:
    """Explain the colours below all panels of a figure or subfigure, in at most `columns`."""
    for num_rows in range(1, len(handles) + 1):
        ncols = ceil(len(handles) / num_rows)
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=ncols,
                               frameon=False, fontsize=9)
        fits = legend.get_window_extent().width <= figure.bbox.width
        if ncols == 1 or ncols <= columns and fits:
            return
        legend.remove()                 # too wide: try one more row


class Picture(type(Path())):
    """The path of a picture; as the value of a notebook's cell it shows itself."""

    def _repr_png_(self) -> bytes | None:
        return self.read_bytes() if self.suffix.lower() == ".png" and self.is_file() else None

    def _repr_svg_(self) -> str | None:
        return self.read_text("utf-8") if self.suffix.lower() == ".svg" and self.is_file() else None


def save(figure: Figure, path: str | Path) -> Picture:
    """Write the figure in the format of the suffix (.png, .svg, .pdf …), whole or not at all.

    Raises ValueError for a suffix that matplotlib does not know.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{str(path)!r} does not say which kind of picture: give a name that ends "
                         "in .png, .svg or .pdf")
    return Picture(replace_file(
        path, lambda file: figure.savefig(file, format=kind, facecolor="white")))
