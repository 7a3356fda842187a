"""The common parts of all pictures: one style of figures, one legend, one way to save."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..atomic_files import replace_file
from .colors import LIGHT


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


def legend_below(figure: Any, handles: Sequence[Any], columns: int) -> None:
    """Explain the colours below all panels of a figure or subfigure, in at most `columns`."""
    for num_rows in range(1, len(handles) + 1):
        ncols = ceil(len(handles) / num_rows)
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=ncols,
                               frameon=False, fontsize=9)
        fits = legend.get_window_extent().width <= figure.bbox.width
        if ncols == 1 or ncols <= columns and fits:
            return
        legend.remove()                 # it would be cut: one row more


class Picture(type(Path())):
    """The path of a picture; as the value of a notebook's cell it shows itself."""

    def _repr_png_(self) -> bytes | None:
        return self.read_bytes() if self.suffix.lower() == ".png" and self.is_file() else None

    def _repr_svg_(self) -> str | None:
        return self.read_text("utf-8") if self.suffix.lower() == ".svg" and self.is_file() else None


def save(figure: Figure, path: str | Path) -> Picture:
    """Write the figure as what the suffix says (.png, .svg, .pdf), whole or not at all.

    Raises ValueError for another one.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{str(path)!r} does not say which kind of picture: give a name that ends "
                         "in .png, .svg or .pdf")
    return Picture(replace_file(
        path, lambda file: figure.savefig(file, format=kind, facecolor="white")))
