"""Rematerialization: what dropping activations costs, and plans being executed.

    forwards │╲                        a line: the best plans that there are
    more     │ ╲__● full   ● √L        dots: plans by rule; rings: counted in a run
             │    ╲_______
             └────────────● none       bytes at the peak

    part 0  ▐F▌                          ▐A▌▐ B ▌     F forward, A forward again, B backward
    part 1     ▐F▌             ▐A▌▐ B ▌
    part 2        ▐F▌▐A▌▐ B ▌                         time is counted in FLOPs
    bytes   ▁▁▂▂▂▂▃▃▃▆▆▆▅▅▅▅▅▅▅▅▆▆▆▅▅▅▂▂▅▅▅▅▅▅

The lanes are `boxes(steps)`, plain data, so that a test can compare them with the steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator

from ..colors import BLACK, BLUE, DARK, GREEN, ORANGE, PHASE, PURPLE, VERMILION
from ..figure import empty_figure, in_units, label_at, legend_below, save, tidy
from .lanes import fill_lanes, name_lanes, write_peak

Points = Sequence[tuple[float, float]]
HIGHEST = 2.0           # forwards more than one: what costs more is not drawn
WORDS = {"forward": "forward", "again": "forward again", "backward": "backward"}
LOOKS = {kind: {"facecolor": PHASE[kind], "edgecolor": "white", "linewidth": 0.3} for kind in WORDS}
RING = {"marker": "o", "markerfacecolor": "none", "linestyle": "none"}


class RematStepLike(Protocol):
    """A step of a plan, as far as the pictures need it: `live` is in bytes."""

    kind: str
    part: int
    flops: int
    live: int


class PartBox(NamedTuple):
    """A part runs from `start` to `end`, in FLOPs since the beginning."""

    kind: str
    part: int
    start: int
    end: int
    live: int


def boxes(steps: Sequence[RematStepLike]) -> list[PartBox]:
    """A box for each step, one after the other; a step without FLOPs has no width."""
    ends = np.cumsum([step.flops for step in steps], dtype=object)
    return [PartBox(step.kind, step.part, end - step.flops, end, step.live)
            for step, end in zip(steps, ends)]


def draw_remat_tradeoff(path: str | Path, best: Points, rules: Mapping[str, Points],
                        counted: Points, growth: Mapping[str, tuple[Points, Points]],
                        runs: Mapping[str, Sequence[RematStepLike]], names: Sequence[str],
                        title: str = "") -> Path:
    """Draw three panels: compute against memory, memory against depth, plans being executed.

    Points of `best`, `rules` (plans by a rule, by its name) and `counted` are (bytes at the peak,
    forwards more than one).  `growth` has by name the predicted and the counted points (number of
    layers, arrays alive).  `runs` and `names` are those of `draw_runs`.  Returns the path written.
    Raises ValueError if there is nothing to draw.
    """
    if not best or not growth:
        raise ValueError("nothing to draw: give at least one plan, and one curve over the depth")
    figure = empty_figure(11.2, 9.2, title)
    above, below = figure.subfigures(2, 1, height_ratios=(4.2, 4.6), hspace=0.04)
    left, right = above.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_tradeoff(left, best, rules, counted)
    _draw_growth(right, growth)
    draw_runs(below, runs, names)
    return save(figure, path)


def _draw_tradeoff(axes: Axes, best: Points, rules: Mapping[str, Points], counted: Points) -> None:
    """Draw how many forwards are recomputed, over the bytes at the peak."""
    axes.step(*zip(*[point for point in best if point[1] <= HIGHEST]), where="post", color=BLUE,
              linewidth=1.6, label="optimal, at every budget", zorder=2)
    for (name, points), color in zip(rules.items(), (VERMILION, ORANGE, GREEN, PURPLE, DARK)):
        axes.plot(*zip(*points), "o", color=color, markersize=6.5, label=name, zorder=3)
    axes.plot(*zip(*counted), markeredgecolor=BLACK, markersize=11, label="counted in a run",
              zorder=4, **RING)
    axes.set_xscale("log")
    label_at(axes.xaxis, LogLocator(subs=(1, 2, 5)), EngFormatter("B"))
    axes.set(ylim=(-0.07, HIGHEST), xlabel="activations at the peak",
             ylabel="recomputed, in forwards")
    axes.set_title("What a byte less costs", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    tidy(axes, "both")


def _draw_growth(axes: Axes, growth: Mapping[str, tuple[Points, Points]]) -> None:
    """Draw the arrays alive at the peak over the number of layers: lines predicted, rings counted.
    """
    for (name, (predicted, counted)), color in zip(growth.items(), (DARK, BLUE, GREEN, PURPLE)):
        axes.plot(*zip(*predicted), color=color, linewidth=1.6)
        axes.plot(*zip(*counted), markeredgecolor=color, markersize=7, **RING)
        axes.annotate(name, predicted[-1], xytext=(7, 0), textcoords="offset points", color=color,
                      fontsize=9.5, va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        label_at(axis, LogLocator(base=2))
    first, last = axes.get_xlim()
    axes.set_xlim(first, last * (last / first) ** 0.45)         # room for the names
    axes.set(xlabel="layers that are all alike, L", ylabel="arrays alive at the peak")
    axes.set_title("How memory grows with depth", loc="left", fontsize=10.5)
    axes.legend(handles=[Line2D([], [], color=DARK, label="predicted"),
                         Line2D([], [], markeredgecolor=DARK, label="counted", **RING)],
                frameon=False, fontsize=9, loc="upper left")
    tidy(axes, "both")


def draw_runs(figure: Figure | SubFigure, runs: Mapping[str, Sequence[RematStepLike]],
              names: Sequence[str]) -> None:
    """Draw runs of plans side by side, by title, to one scale; `names` are those of the parts.

    Raises ValueError if there is no run, or one without steps.
    """
    if not runs or not all(len(steps) for steps in runs.values()):
        raise ValueError("no steps to draw: give the steps of at least one plan")
    drawn = {title: boxes(steps) for title, steps in runs.items()}
    until = max(box.end for found in drawn.values() for box in found) / 1e6
    top = max(box.live for found in drawn.values() for box in found)
    grid = figure.subplots(2, len(drawn), squeeze=False, sharex=True, sharey="row",
                           height_ratios=(0.22 * len(names), 1.3))
    for (title, found), lanes, memory in zip(drawn.items(), *grid):
        fill_lanes(lanes, [(box.part, box.kind, box.start / 1e6, box.end / 1e6) for box in found
                           if box.kind in LOOKS], LOOKS, dict.fromkeys(LOOKS, (-0.4, 0.8)))
        lanes.set_title(title, loc="left", fontsize=10.5)
        name_lanes(lanes, names)
        lanes.tick_params(axis="y", labelsize=8)
        tidy(lanes)
        memory.set(xlim=(0, until), ylim=(0, 1.3 * top), xlabel="computed so far, in MFLOPs")
        _draw_live(memory, found)
    grid[1, 0].set_ylabel("live")
    handles = [Patch(facecolor=PHASE[kind], label=words) for kind, words in WORDS.items()]
    handles.append(Patch(facecolor=PURPLE, alpha=0.45, label="live activations"))
    legend_below(figure, handles, 4)


def _draw_live(axes: Axes, found: Sequence[PartBox]) -> None:
    """Draw the live bytes of every step, and the peak."""
    x = [0, *[box.end / 1e6 for box in found]]
    y = [box.live for box in found]
    axes.fill_between(x, [*y, y[-1]], step="post", color=PURPLE, alpha=0.45, linewidth=0)
    highest = max(found, key=lambda box: box.live)
    write_peak(axes, (highest.start + highest.end) / 2e6, highest.live)
    in_units(axes.yaxis, "B")
    tidy(axes, "y")
