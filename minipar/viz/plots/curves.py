"""Curves: training's losses, seconds over bytes, waiting under load, and the limits of a device.

    seconds      ╲    ╱ doubling        draw_crossovers: lines are the model, dots are measured;
      (log)   ___╲╱_____ ring           both axes are logarithmic, so a term that decides is a
                  ┊                     straight line.  Dashed: another algorithm becomes fastest.
              bytes (log) ─▶

    s per token │    ╱    ╱      ╱      draw_load_curve: each line turns upwards where the requests
         (log)  │___╱____╱______╱       that come in a second are more than the device can answer
                └──────────────▶ requests/s
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator

from ..colors import BLACK, BLUE, DARK, GREEN, GREY, PALETTE, RED
from ..figure import (
    in_units,
    label_at,
    legend_below,
    new_figure,
    new_panels,
    save,
    tidy,
    whole_numbers,
)

Points = Sequence[tuple[float, float]]


class CostCurves(NamedTuple):
    """One panel: the points (bytes, seconds) of lines and of dots, by algorithm.

    `crossings` are (bytes, the algorithm that is fastest from there on).
    """

    title: str
    lines: Mapping[str, Points]
    dots: Mapping[str, Points]
    crossings: Sequence[tuple[float, str]] = ()


class Requirement(NamedTuple):
    """A quantity that models need: its value for each, and the limits (walls) of devices."""

    title: str
    label: str
    values: Sequence[float]
    walls: Mapping[str, float]


class MilestoneRun(NamedTuple):
    """A run: its losses by step, and the bytes that all ranks send in a step, by collective."""

    name: str
    losses: Sequence[float]
    own_losses: Sequence[float]
    sent: dict[str, int]
    own_sent: dict[str, int]
    passed: bool


LATENCIES = {"seconds_per_token": "latency per token of the answer",
             "first_token_median": "time to the first token (median)",
             "gap_p95": "gap between tokens (95th percentile)"}


def draw_loss(path: str | Path, steps: Sequence[float], losses: Sequence[float], title: str = "",
              reference: tuple[float, str] | None = None, per: str = "character") -> Path:
    """Draw the loss in nats (at the right: in bits) over the steps; return the path written.

    `reference` is (loss, what it is), a horizontal line: for example ln(vocabulary), the loss of
    guessing evenly.  `per` is what one target is.  Raises ValueError if steps and losses differ
    in number, or if there are none.
    """
    if len(steps) != len(losses) or not len(steps):
        raise ValueError(f"{len(steps)} steps and {len(losses)} losses: give one of each for every "
                         "point, at least one")
    figure, axes = new_figure(8, 4.5, title)
    dot = {"marker": "o", "markersize": 3} if len(steps) <= 40 else {}
    axes.plot(steps, losses, color=BLUE, linewidth=1.4, **dot,
              label=f"training, {losses[-1]:.3g} at the end")
    if reference:
        axes.axhline(reference[0], color=GREEN, linestyle="--", linewidth=1.2, label=reference[1])
    axes.set(xlabel="step", ylabel=f"loss in nats per {per}")
    whole_numbers(axes.xaxis)
    tidy(axes, "both")
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / math.log(2),
                                                    lambda bits: bits * math.log(2)))
    bits.set_ylabel(f"bits per {per}")
    axes.legend(framealpha=1, edgecolor="none", loc="center right")
    return save(figure, path)


def draw_crossovers(path: str | Path, panels: Sequence[CostCurves], title: str = "") -> Path:
    """Draw the panels, three in a row, with one legend if they show the same; return the path.

    Raises ValueError for a panel without points.
    """
    for panel in panels:
        if not any([*panel.lines.values(), *panel.dots.values()]):
            raise ValueError(f"nothing to draw in {panel.title!r}: give lines or dots")
    columns, rows = min(3, len(panels)), math.ceil(len(panels) / 3)
    figure, grid = new_panels(0.6 + 4.4 * columns, 0.9 + 4.0 * rows, title, rows, columns, "both")
    for axes, panel in zip(grid.flat, panels):
        _draw_costs(axes, panel)
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    names = {tuple(_colors(panel)) for panel in panels}
    key = _key(panels[0]) if len(names) == 1 else []
    for axes, panel in zip(grid.flat, panels if not key else ()):
        axes.legend(handles=_key(panel), loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2,
                    frameon=False, fontsize=8.5)
    looks = {"the model": {"color": DARK},
             "measured": {"color": DARK, "marker": "o", "linestyle": ":"},
             "another becomes fastest here": {"color": BLACK, "linestyle": "--"}}
    legend_below(figure, [*key, *(Line2D([], [], label=label, **look)
                                  for label, look in looks.items())], 8)
    return save(figure, path)


def _colors(panel: CostCurves) -> dict[str, str]:
    names = dict.fromkeys([*panel.lines, *panel.dots])
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def _key(panel: CostCurves) -> list[Line2D]:
    """The legend of a panel's colours, as lines."""
    return [Line2D([], [], color=color, linewidth=3, label=name.replace("_", " "))
            for name, color in _colors(panel).items()]


def _draw_costs(axes: Axes, panel: CostCurves) -> None:
    colors = _colors(panel)
    for i, (name, points) in enumerate(panel.lines.items()):    # wider below, so equal lines show
        axes.plot(*zip(*points), color=colors[name], zorder=3,
                  linewidth=1.3 + 0.6 * (len(panel.lines) - 1 - i))
    for name, points in panel.dots.items():
        axes.plot(*zip(*points), "o:", color=colors[name], markersize=4.5, linewidth=0.7, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.08 + 0.08 * min(4, len(panel.crossings))))
    left, right = map(math.log, axes.get_xlim())
    places = [(math.log(num_bytes) - left) / (right - left) for num_bytes, _ in panel.crossings]
    for i, (num_bytes, name) in enumerate(panel.crossings):
        axes.axvline(num_bytes, color=BLACK, linestyle="--", linewidth=1, zorder=2)
        # on the side where no other line is near, within the axes
        near = [other - places[i] for other in places if 0 < abs(other - places[i]) < 0.4]
        is_left = places[i] > (0.75 if min(near, default=0) < 0 else 0.6) \
            or places[i] > 0.4 and max(near, default=0) > 0
        axes.annotate(f"{_binary(num_bytes)}: {name.replace('_', ' ')}",
                      (num_bytes, 0.98 - 0.075 * (i % 4)), xycoords=("data", "axes fraction"),
                      xytext=(-4 if is_left else 4, 0), textcoords="offset points", fontsize=8,
                      color=BLACK, ha="right" if is_left else "left", va="top", zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9})
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.set(xlabel="bytes of the whole array", ylabel="time")
    label_at(axes.xaxis, LogLocator(base=16), _binary)
    label_at(axes.yaxis, LogLocator(subs=(1, 3)), EngFormatter("s"))


def _binary(value: float) -> str:
    """65536 as 64 KiB."""
    units = ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.4g} {units[0]}" if value >= 100 else f"{value:.3g} {units[0]}"


def draw_load_curve(path: str | Path, curves: Mapping[str, Sequence[Any]],
                    title: str = "") -> Path:
    """Draw curves of LoadResults (`tests/bench/simulated_load.py`); return the path written."""
    figure, grid = new_panels(13.0, 4.4, title, columns=len(LATENCIES), grid="both")
    for axes, (name, label) in zip(grid[0], LATENCIES.items()):
        for (way, results), color in zip(curves.items(), PALETTE):
            axes.plot([result.rate for result in results],
                      [getattr(result, name) for result in results], "o-", markersize=4,
                      color=color, label=way)
        axes.set_title(label, loc="left", fontsize=10)
        axes.set(xlabel="requests/s", yscale="log")
        axes.set_xlim(left=0)
        label_at(axes.yaxis, LogLocator(subs=(1, 2, 5)), EngFormatter("s"))
    legend_below(figure, grid[0, 0].lines, 4)
    return save(figure, path)


def draw_device_limits(path: str | Path, sizes: Mapping[str, float], needs: Sequence[Requirement],
                       title: str = "") -> Path:
    """Draw one panel for each need, both axes logarithmic; return the path written.

    `sizes` are the parameters of the models by name.  Points above the lowest wall of a panel are
    red.
    """
    figure, grid = new_panels(5.6 * len(needs), 4.6, title, columns=len(needs), grid="both")
    for axes, need in zip(grid[0], needs):
        _draw_need(axes, sizes, need)
    return save(figure, path)


def _draw_need(axes: Axes, sizes: Mapping[str, float], need: Requirement) -> None:
    lowest, smallest = min(need.walls.values()), min(sizes.values()) / 3
    axes.loglog(list(sizes.values()), need.values, color=DARK, linewidth=1, zorder=1)
    for (name, size), value in zip(sizes.items(), need.values):
        axes.plot(size, value, "o", color=BLUE if value <= lowest else RED, markersize=7, zorder=3)
        axes.annotate(name, (size, value), xytext=(7, -4), textcoords="offset points", fontsize=9,
                      color=BLACK, va="top", zorder=4,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85})
    axes.set_xlim(smallest, max(sizes.values()) * 12)
    axes.set_ylim(min(*need.values, lowest) / 5, max(*need.values, *need.walls.values()) * 4)
    axes.axhspan(lowest, axes.get_ylim()[1], color=RED, alpha=0.05, linewidth=0)
    for name, value in need.walls.items():
        axes.axhline(value, color=RED, linestyle="--", linewidth=1.2, zorder=2)
        axes.annotate(name, (smallest, value), xytext=(5, 3), textcoords="offset points",
                      fontsize=9, color=RED)
    axes.set_title(need.title, loc="left", fontsize=10.5)
    axes.set(xlabel="parameters", ylabel=need.label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda x, _: EngFormatter()(x) if x >= 1 else f"{x:g}")


def draw_milestone(path: str | Path, title: str, runs: Sequence[MilestoneRun]) -> Path:
    """Draw a row for each run: its losses, and the bytes that it sent.

    The reference is grey; the learner's run is blue, or red if it differs.  Returns the path
    written.
    """
    figure, grid = new_panels(9, 0.6 + 2.7 * len(runs), title, len(runs), 2, width_ratios=[3, 2])
    for run, (left, right) in zip(runs, grid):
        color = BLUE if run.passed else RED
        left.plot(run.losses, color=GREY, linewidth=6, solid_capstyle="round", label="reference")
        left.plot(run.own_losses, "o-", color=color, linewidth=1.6, markersize=4,
                  label="your functions")
        left.set_title(run.name.replace("_", " "), loc="left", fontsize=10)
        left.set(xlabel="step", ylabel="loss in nats")
        whole_numbers(left.xaxis)
        names = sorted({*run.sent, *run.own_sent})
        for values, shift, shade in ((run.sent, 0.2, GREY), (run.own_sent, -0.2, color)):
            right.barh([i + shift for i in range(len(names))],
                       [values.get(name, 0) for name in names], 0.36, color=shade)
        right.set_yticks(range(len(names)), [name.replace("_", "-") for name in names])
        right.set_xlabel("sent in a step, all ranks")
        in_units(right.xaxis, "B")
        tidy(left, "both")
        tidy(right, "x")
    legend_below(figure, grid[0, 0].lines, 2)
    return save(figure, path)
