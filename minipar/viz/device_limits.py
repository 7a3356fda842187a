"""The wall: models on one axis, their need on the other, and the line where a device ends."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from .colors import BLACK, BLUE, DARK, RED
from .figure import empty_figure, save, tidy


class Requirement(NamedTuple):
    """A quantity that models need: one value for each, and walls (value by name) against them."""

    title: str
    label: str
    values: Sequence[float]
    walls: Mapping[str, float]


def draw_device_limits(path: str | Path, sizes: Mapping[str, float], needs: Sequence[Requirement],
              title: str = "", size_label: str = "parameters") -> Path:
    """One panel for each need, both axes logarithmic; return the path written.

    `sizes` are the models by name.  Points above the lowest wall of a panel are red.
    """
    figure = empty_figure(5.6 * len(needs), 4.6, title)
    for axes, need in zip(figure.subplots(1, len(needs), squeeze=False)[0], needs):
        _draw_panel(axes, sizes, need, size_label)
    return save(figure, path)


def _draw_panel(axes: Axes, sizes: Mapping[str, float], need: Requirement, size_label: str) -> None:
    lowest = min(need.walls.values())
    axes.plot(list(sizes.values()), need.values, color=DARK, linewidth=1, zorder=1)
    for (name, size), value in zip(sizes.items(), need.values):
        fits = value <= lowest
        axes.plot(size, value, "o", color=BLUE if fits else RED, markersize=7, zorder=3)
        axes.annotate(name, (size, value), xytext=(7, -4), textcoords="offset points", fontsize=9,
                      color=BLACK, va="top", zorder=4,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85})
    axes.set_xscale("log")
    axes.set_yscale("log")
    smallest, largest = min(sizes.values()), max(sizes.values())
    axes.set_xlim(smallest / 3, largest * 12)
    axes.set_ylim(min(*need.values, lowest) / 5, max(*need.values, *need.walls.values()) * 4)
    axes.axhspan(lowest, axes.get_ylim()[1], color=RED, alpha=0.05, linewidth=0)
    for name, value in need.walls.items():
        axes.axhline(value, color=RED, linestyle="--", linewidth=1.2, zorder=2)
        axes.annotate(name, (smallest / 3, value), xytext=(5, 3), textcoords="offset points",
                      fontsize=9, color=RED)
    axes.set_title(need.title, loc="left", fontsize=10.5)
    axes.set_xlabel(size_label)
    axes.set_ylabel(need.label)
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    tidy(axes, "both")


def _short(value: float, _position: int | None = None) -> str:
    """1500 as 1.5 k, 2e9 as 2 G."""
    for factor, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:g}{suffix}"
    return f"{value:g}"
