"""Seconds over bytes for each algorithm, and the crossovers where another one becomes fastest.

    seconds      ╲    ╱ doubling        lines: the model      dots: measured
      (log)   ___╲╱_____ ring
                  ┊                     dashed: another one becomes fastest here
              bytes (log) ─▶

Both axes are logarithmic, so a term that decides is a straight line.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..units import time_unit
from .colors import BLACK, DARK, PALETTE
from .figure import empty_figure, legend_below, save, tidy

Points = Sequence[tuple[float, float]]              # (bytes, seconds)


class CostCurves(NamedTuple):
    """One panel: lines and dots by algorithm.

    `crossings` are (bytes, the algorithm that is fastest from there on).
    """

    title: str
    lines: Mapping[str, Points]
    dots: Mapping[str, Points]
    crossings: Sequence[tuple[float, str]] = ()


def draw_crossovers(path: str | Path, panels: Sequence[CostCurves], title: str = "") -> Path:
    """Draw the panels, three in a row, each with its own legend; return the path written.

    Raises ValueError for a panel without points.
    """
    for panel in panels:
        if not any([*panel.lines.values(), *panel.dots.values()]):
            raise ValueError(f"nothing to draw in {panel.title!r}: give lines or dots")
    columns = min(3, len(panels))
    rows = ceil(len(panels) / columns)
    figure = empty_figure(0.6 + 4.4 * columns, 0.9 + 4.0 * rows, title)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels):
        _draw(axes, panel)
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    looks = {"the model": {"color": DARK},
             "measured": {"color": DARK, "marker": "o", "linestyle": ":"},
             "another becomes fastest here": {"color": BLACK, "linestyle": "--"}}
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    legend_below(figure, handles, 3)
    return save(figure, path)


def _draw(axes: Axes, panel: CostCurves) -> None:
    names = list(dict.fromkeys([*panel.lines, *panel.dots]))
    for points_of, look in ((panel.lines, {"linewidth": 1.6}),
                            (panel.dots, {"marker": "o", "markersize": 4.5, "linewidth": 0.7,
                                          "linestyle": ":"})):
        for name, points in points_of.items():
            axes.plot(*zip(*points), color=PALETTE[names.index(name) % len(PALETTE)], zorder=3,
                      **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.08 + 0.08 * min(4, len(panel.crossings))))
    for i, (num_bytes, name) in enumerate(panel.crossings):
        axes.axvline(num_bytes, color=BLACK, linestyle="--", linewidth=1, zorder=2)
        right = num_bytes > _middle(axes)
        axes.annotate(f"{_binary(num_bytes)}: {name.replace('_', ' ')}",
                      (num_bytes, 0.98 - 0.075 * (i % 4)), xycoords=("data", "axes fraction"),
                      xytext=(-4 if right else 4, 0), textcoords="offset points", fontsize=8,
                      color=BLACK, ha="right" if right else "left", va="top", zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9})
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.set_xlabel("bytes of the whole array")
    axes.set_ylabel("time")
    axes.xaxis.set_major_locator(LogLocator(base=16))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _binary(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    tidy(axes, "both")
    handles = [Line2D([], [], color=PALETTE[i % len(PALETTE)], linewidth=3,
                      label=name.replace("_", " ")) for i, name in enumerate(names)]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2,
                frameon=False, fontsize=8.5)


def _middle(axes: Axes) -> float:
    low, high = axes.get_xlim()
    return (low * high) ** 0.5


def _binary(value: float) -> str:
    """65536 as 64 KiB."""
    units = ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.4g} {units[0]}" if value >= 100 else f"{value:.3g} {units[0]}"


def _time(seconds: float) -> str:
    """1e-5 as 10 µs."""
    unit, scale = time_unit(seconds * 1.001)
    return f"{seconds * scale:.3g} {unit}"
