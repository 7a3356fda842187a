"""Waiting under load: latency over requests a second, one line for each way of serving.

    s per token │    ╱    ╱      ╱       each line turns upwards where the requests that come in a
         (log)  │___╱____╱______╱        second are more than the device can answer
                └──────────────▶ requests/s
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..units import time_unit
from .colors import PALETTE
from .figure import empty_figure, legend_below, save, tidy

PANELS = {"seconds_per_token": "latency per token of the answer",
          "first_token_median": "time to the first token (median)",
          "gap_p95": "gap between tokens (95th percentile)"}


def draw_load_curve(path: str | Path, curves: Mapping[str, Sequence[Any]],
                    title: str = "") -> Path:
    """Draw curves of LoadResults (`inference.simulated_load`); return the path written."""
    figure = empty_figure(13.0, 4.4, title)
    panels = figure.subplots(1, len(PANELS))
    lines: list[Any] = []
    for axes, (name, label) in zip(panels, PANELS.items()):
        lines = [axes.plot([result.rate for result in results],
                           [getattr(result, name) for result in results], marker="o",
                           markersize=4, color=color, label=way)[0]
                 for (way, results), color in zip(curves.items(), PALETTE)]
        _dress(axes, label)
    legend_below(figure, lines, 4)
    return save(figure, path)


def _dress(axes: Axes, label: str) -> None:
    axes.set_title(label, loc="left", fontsize=10)
    axes.set_xlabel("requests/s")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(_time))
    axes.yaxis.set_minor_locator(NullLocator())
    tidy(axes, grid="both")


def _time(value: float, _position: int) -> str:
    unit, scale = time_unit(value)
    return f"{value * scale:g} {unit}"
