"""Compute against memory: what dropping activations costs, and how memory grows with depth.

    forwards │╲                        a line: the best plans that there are
    more     │ ╲__● full   ● √L        dots: plans by rule; rings: counted in a run
             │    ╲_______
             └────────────● none       bytes at the peak

A dot on the line is as good as the best plan for its budget.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..units import byte_unit
from .colors import BLACK, BLUE, DARK, GREEN, ORANGE, PURPLE, VERMILION
from .figure import empty_figure, save, tidy
from .remat_steps import RematStepLike, draw_runs

Points = Sequence[tuple[float, float]]
HIGHEST = 2.0           # forwards more than one: what costs more is not drawn
LINES = (DARK, BLUE, GREEN, PURPLE)


def draw_remat_tradeoff(path: str | Path, best: Points, rules: Mapping[str, Points],
                        counted: Points, growth: Mapping[str, tuple[Points, Points]],
                        runs: Mapping[str, Sequence[RematStepLike]], names: Sequence[str],
                        title: str = "") -> Path:
    """Three panels: compute against memory, memory against depth, plans being executed.

    Points of `best`, `rules` (plans by a rule, by its name) and `counted` are (bytes at the peak,
    forwards more than one).  `growth`: by name what was predicted and what was counted, points
    (number of layers, arrays alive).  `runs` and `names` as for `draw_runs`.  Returns the
    path written.  Raises ValueError if there is nothing to draw.
    """
    if not best or not growth:
        raise ValueError("nothing to draw: give at least one plan, and one curve over the depth")
    figure = empty_figure(11.2, 9.2, title)
    above, below = figure.subfigures(2, 1, height_ratios=(4.2, 4.6), hspace=0.04)
    left, right = above.subplots(1, 2, width_ratios=(1.25, 1))
    draw_tradeoff(left, best, rules, counted)
    draw_growth(right, growth)
    draw_runs(below, runs, names)
    return save(figure, path)


def draw_tradeoff(axes: Axes, best: Points, rules: Mapping[str, Points], counted: Points) -> None:
    """Forwards that are computed more than once, over bytes at the peak."""
    shown = [point for point in best if point[1] <= HIGHEST]
    unit, size = byte_unit(max(x for x, _ in best))
    axes.step(*_columns(shown, size), where="post", color=BLUE, linewidth=1.6,
              label="optimal, at every budget", zorder=2)
    for (name, points), color in zip(rules.items(), (VERMILION, ORANGE, GREEN, PURPLE, DARK)):
        axes.plot(*_columns(points, size), "o", color=color, markersize=6.5, label=name, zorder=3)
    axes.plot(*_columns(counted, size), "o", markerfacecolor="none", markeredgecolor=BLACK,
              markersize=11, linestyle="none", label="counted in a run", zorder=4)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(-0.07, HIGHEST)
    axes.set_xlabel(f"activations at the peak, in {unit}")
    axes.set_ylabel("recomputed, in forwards")
    axes.set_title("What a byte less costs", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    _tidy(axes)


def draw_growth(axes: Axes, growth: Mapping[str, tuple[Points, Points]]) -> None:
    """Arrays alive at the peak over the number of layers: lines predicted, rings counted."""
    for (name, (predicted, counted)), color in zip(growth.items(), LINES):
        axes.plot(*_columns(predicted), color=color, linewidth=1.6)
        axes.plot(*_columns(counted), "o", markerfacecolor="none", markeredgecolor=color,
                  markersize=7)
        axes.annotate(name, predicted[-1], xytext=(7, 0), textcoords="offset points", color=color,
                      fontsize=9.5, va="center", bbox={"facecolor": "white", "edgecolor": "none",
                                                       "pad": 1})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    first, last = axes.get_xlim()
    axes.set_xlim(first, last * (last / first) ** 0.45)         # room for the names
    axes.set_xlabel("layers that are all alike, L")
    axes.set_ylabel("arrays alive at the peak")
    axes.set_title("How memory grows with depth", loc="left", fontsize=10.5)
    axes.legend(handles=[Line2D([], [], color=DARK, label="predicted"),
                         Line2D([], [], color=DARK, marker="o", markerfacecolor="none",
                                linestyle="none", label="counted")],
                frameon=False, fontsize=9, loc="upper left")
    _tidy(axes)


def _columns(points: Points, size: float = 1) -> tuple[list[float], list[float]]:
    """All x, in units of `size`, and all y."""
    return [x / size for x, _ in points], [y for _, y in points]


def _tidy(axes: Axes) -> None:
    tidy(axes, "both")
