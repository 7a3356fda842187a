"""Quality against cost: points, and the front of those that none beats in both.

    quality │        ● b ─ ─ ● dense       a point outside of the front is no choice: another one
            │   ● a                        costs less, and is at least as good
            │        ○ c
            └─────────────────── bytes, log

A picture for slow networks shows loss against seconds and bytes, with a colour for each method and
a thin line for each seed.  Another one shows the bytes of sparse messages beside dense ones.

A pruning mask has a dot for each element of its weight, dark where the element is kept.

    tp 8 │ 1.0  1.1  1.4       draw_choices: the cost of each pair of choices, relative to the
    tp 4 │ 1.2   –    –        best; a pair without a number is not possible
"""


from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, LogLocator
from matplotlib.transforms import Bbox

from ..colors import BLACK, BLUE, DARK, GREY, LIGHT, MANY, OLIVE, PALETTE, WINE
from ..figure import empty_figure, label_at, legend_below, new_figure, new_panels, save, tidy

MARKERS, COLORS = "osD^vP*X<", (*PALETTE[:6], WINE, OLIVE, BLACK)
# Pixels: from a point to its label; between two labels; half of a point.
RADII, GAP, POINT = (9, 18, 29, 43, 61, 83, 108, 137), 6.0, 5.0
SMOOTHED = 15           # steps in a moving average of the loss
ANGLES = np.radians(np.arange(0, 360, 30))


class ParetoPanel(NamedTuple):
    """One pair of axes: points (bytes, quality, its spread) by name; which quality is better.

    `size` says which bytes.
    """

    title: str
    quality: str
    points: Mapping[str, tuple[float, float, float]]
    more_is_better: bool = True
    size: str = "size of the model's file"


class PrunedModel(NamedTuple):
    """A model: how good it is, and its costs as parts of the dense one's."""

    name: str
    quality: float
    costs: tuple[float, ...]


class CostedRun(NamedTuple):
    """One run: for each step its loss, and the seconds and the bytes sent up to its end."""

    losses: Sequence[float]
    seconds: Sequence[float]
    num_bytes: Sequence[float]


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The Pareto front of points (cost, quality), by cost: the names of those that none beats.

    A point is beaten by another one that costs no more and is at least as good.
    """
    best, names = -np.inf, []
    for name, (_, quality) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if quality > best:
            best = quality
            names.append(name)
    return names


def draw_pareto(path: str | Path, panels: Sequence[ParetoPanel], title: str = "") -> Path:
    """Draw the panels side by side; return the path written."""
    figure, grid = new_panels(6.4 * len(panels), 5.4, title, columns=len(panels), grid="both")
    for axes, panel in zip(grid[0], panels):
        _draw_points(axes, panel)
    figure.draw_without_rendering()         # now it is known where the points are
    figure.set_layout_engine("none")
    for axes, panel in zip(grid[0], panels):
        _place_labels(axes, {name: (x, y) for name, (x, y, _) in panel.points.items()})
    return save(figure, path)


def _draw_points(axes: Axes, panel: ParetoPanel) -> None:
    sign = 1 if panel.more_is_better else -1
    front = pareto_front({name: (x, sign * y) for name, (x, y, _) in panel.points.items()})
    for name, (x, y, spread) in panel.points.items():
        axes.errorbar(x, y, yerr=spread, color=BLUE if name in front else GREY, marker="o",
                      markersize=6, capsize=2, linewidth=1, zorder=3 + (name in front))
    axes.step(*zip(*[panel.points[name][:2] for name in front]), where="post", color=BLUE,
              linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log")
    label_at(axes.xaxis, LogLocator(subs=(1, 2, 5)), EngFormatter("B"))
    axes.margins(x=0.16, y=0.12)
    if not panel.more_is_better:
        axes.invert_yaxis()
    axes.set(xlabel=f"{panel.size} (log)",
             ylabel=f"{panel.quality} (up is better)")
    axes.set_title(f"{panel.title}: blue, none is better and smaller", loc="left", fontsize=10)


def _place_labels(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Put each label at the nearest place where it overlaps nothing; a thin line leads to it.

    If all places are taken, the label is on its point.
    """
    pixels = {name: tuple(axes.transData.transform(point)) for name, point in points.items()}
    taken = [Bbox.from_bounds(x, y, 0, 0).padded(POINT) for x, y in pixels.values()]
    inside = axes.get_window_extent()
    for name in sorted(points, key=lambda name: pixels[name]):
        label = axes.annotate(
            name, points[name], xytext=(0, 0), textcoords="offset pixels", ha="center",
            va="center", fontsize=8.5, color=BLACK, zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "zorder": 2})
        size = Text.get_window_extent(label).size       # without its line
        for radius, angle in product(RADII, ANGLES):
            offset = (radius + size / 2) * (np.cos(angle), np.sin(angle))
            place = Bbox.from_bounds(*(pixels[name] + offset - size / 2), *size)
            if (inside.contains(*place.min) and inside.contains(*place.max)
                    and not any(place.padded(GAP).overlaps(other) for other in taken)):
                label.set_position(tuple(offset))
                taken.append(place)
                break


def draw_choices(path: str | Path, costs: Mapping[tuple[int, int], float], names: tuple[str, str],
                 title: str = "", limit: float = 3.0) -> Path:
    """Draw the cost of each pair of choices over the least cost, as colours and numbers.

    `names` are those of the first choice, which has the rows, and of the second, which has the
    columns.  Colours end at `limit` times the least cost.  Returns the path written.  Raises
    ValueError without any cost.
    """
    if not costs:
        raise ValueError("nothing to draw: give the cost of at least one pair")
    rows, columns = (sorted({pair[i] for pair in costs}) for i in (0, 1))
    grid = np.array([[costs.get((row, column), np.nan) for column in columns] for row in rows])
    grid = grid / np.nanmin(grid)
    figure, [[axes]] = new_panels(2.2 + 0.85 * len(columns), 1.9 + 0.5 * len(rows), title)
    axes.imshow(np.minimum(grid, limit), cmap="viridis_r", vmin=1, vmax=limit, aspect="auto")
    axes.set_facecolor(LIGHT)
    for (i, j), cost in np.ndenumerate(grid):
        axes.text(j, i, "–" if np.isnan(cost) else f"{cost:.2f}", ha="center", va="center",
                  fontsize=9, color="white" if cost > (1 + limit) / 2 else BLACK)
    axes.set_yticks(range(len(rows)), map(str, rows))
    axes.set_xticks(range(len(columns)), map(str, columns))
    axes.set(ylabel=names[0], xlabel=names[1])
    axes.tick_params(length=0)
    return save(figure, path)


def draw_pruning_masks(path: str | Path, masks: Mapping[str, np.ndarray],
                       points: Sequence[PrunedModel], costs: Sequence[str], quality: str,
                       title: str = "") -> Path:
    """Draw `masks` (in, out) by their titles; below, the quality of `points` over each of `costs`.

    The line is the Pareto front.  Returns the path written.
    Raises ValueError if there is nothing to draw, or a point has a different number of costs.
    """
    if not masks or not points or any(len(point.costs) != len(costs) for point in points):
        raise ValueError(f"give at least one mask and one point, with {len(costs)} costs each")
    figure = empty_figure(11, 7.6, title)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.05))
    for axes, (name, mask) in zip(above.subplots(1, len(masks), squeeze=False)[0], masks.items()):
        axes.imshow(mask, cmap=ListedColormap([LIGHT, BLUE]), vmin=0, vmax=1)
        axes.set_title(f"{name}\n{mask.mean():.0%} kept here", fontsize=9, loc="left")
        axes.set_xlabel("outputs", fontsize=8.5)
        axes.set_ylabel("inputs", fontsize=8.5)
        axes.tick_params(labelsize=7.5)
    grid = below.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for i, (axes, cost) in enumerate(zip(grid, costs)):
        _draw_costs(axes, {p.name: (p.costs[i], p.quality) for p in points})
        axes.set_xlabel(cost)
    grid[0].set_ylabel(quality)
    grid[0].margins(y=0.12)
    legend_below(below, grid[0].get_legend_handles_labels()[0], min(4, len(points)))
    return save(figure, path)


def _draw_costs(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    axes.axvline(1, color=DARK, linewidth=0.9, linestyle="--")
    for (name, point), marker, color in zip(points.items(), cycle(MARKERS), cycle(COLORS)):
        axes.scatter(*point, marker=marker, color=color, s=48, label=name, zorder=3)
    axes.step(*zip(*[points[name] for name in pareto_front(points)]), where="post", color=DARK,
              linewidth=1, zorder=1)
    most = max(cost for cost, _ in points.values())
    if most > 4:
        axes.set_xscale("log")
        axes.axvspan(1, most * 1.5, color=LIGHT, alpha=0.5, zorder=0)
        axes.text(1, 1.02, "slower than dense", transform=axes.transAxes, ha="right", fontsize=8.5,
                  color=DARK)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(0, max(1.1, 1.05 * most))
    tidy(axes, "both")


def draw_loss_by_cost(path: str | Path, rows: Mapping[str, Mapping[str, Sequence[CostedRun]]],
                      title: str = "") -> Path:
    """Draw the runs of methods by name, a row of panels for each title; return the path.

    Each row has colours of its own, in the order of its methods.  So a method of several rows, such
    as a baseline, should come first.
    """
    figure, grid = new_panels(12.5, 0.6 + 3.6 * len(rows), title, len(rows), 2, "both",
                              sharex="col", sharey=True)
    for (row_title, row), panels in zip(rows.items(), grid):
        panels[0].set_title(row_title, loc="left", fontsize=10.5)
        for (name, runs), color in zip(row.items(), MANY):
            for i, run in enumerate(runs):
                loss = np.convolve(run.losses, np.ones(SMOOTHED) / SMOOTHED, "valid")
                for axes, costs in zip(panels, (run.seconds, run.num_bytes)):
                    axes.plot(costs[SMOOTHED - 1:], loss, color=color, linewidth=1,
                              label="" if i else name)
        panels[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
        panels[0].set_ylabel(f"loss in nats, mean of {SMOOTHED} steps")
    for axes, label, unit in zip(grid[-1], ("virtual time", "bytes sent by a rank"), "sB"):
        axes.set(xscale="log", xlabel=label)
        label_at(axes.xaxis, LogLocator(subs=(1, 3)), EngFormatter(unit))
    return save(figure, path)


def draw_sparse_or_dense(path: str | Path, counted: Mapping[int, Mapping[float, float]],
                         itemsize: int = 4, title: str = "") -> Path:
    """Draw the bytes of top-k over the bytes of a dense sum, by density; return the path.

    `counted` are quotients from runs, by number of ranks p and density; lines are the formula,
    p · density · (itemsize + 4) / (2 itemsize).
    """
    figure, axes = new_figure(7.5, 4.6, title)
    densities = np.geomspace(1e-3, 1, 50)
    axes.axhline(1, color=BLACK, linewidth=1.2)
    axes.annotate("a dense all-reduce", (1e-3, 1), xytext=(2, 3), textcoords="offset points",
                  fontsize=9)
    for (p, dots), color in zip(counted.items(), MANY):
        slope = p * (itemsize + 4) / (2 * itemsize)
        axes.loglog(densities, slope * densities, color=color, linewidth=1.2, label=f"{p} ranks")
        axes.plot([*dots], [*dots.values()], "o", color=color, markersize=5)
        axes.axvline(1 / slope, color=color, linestyle=":", linewidth=1.2)
    axes.set(xlabel="density: the share of numbers that is sent", ylabel="bytes / dense bytes")
    for axis in (axes.xaxis, axes.yaxis):
        label_at(axis, axis.get_major_locator())
    legend_below(figure, axes.get_legend_handles_labels()[0], 6)
    return save(figure, path)
