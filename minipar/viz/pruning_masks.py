"""Masks as pictures, and what pruned models cost: how good a model is against its size and time.

Each mask is as many dots as its weight has elements: dark where it is kept, light where it is gone.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from .colors import BLACK, BLUE, DARK, LIGHT, OLIVE, PALETTE, WINE
from .figure import empty_figure, legend_below, save, tidy
from .pareto import pareto_front

MARKERS, COLORS = "osD^vP*X<", (*PALETTE[:6], WINE, OLIVE, BLACK)


class PrunedModel(NamedTuple):
    """A model: how good it is, and its costs as parts of those of the dense one."""

    name: str
    quality: float
    costs: tuple[float, ...]


def draw_pruning_masks(path: str | Path, masks: Mapping[str, np.ndarray],
                       points: Sequence[PrunedModel], costs: Sequence[str], quality: str,
                       title: str = "") -> Path:
    """Draw `masks` (in, out) by their titles; below, the quality of `points` over each of `costs`.

    A line is the Pareto front.  Returns the path written.
    Raises ValueError where there is nothing to draw, or a point has other costs.
    """
    if not masks or not points or any(len(point.costs) != len(costs) for point in points):
        raise ValueError(f"give at least one mask and one point, with {len(costs)} costs each")
    figure = empty_figure(11, 7.6, title)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.05))
    for axes, (name, mask) in zip(above.subplots(1, len(masks), squeeze=False)[0], masks.items()):
        _draw_mask(axes, name, mask)
    panels = below.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for i, (axes, cost) in enumerate(zip(panels, costs)):
        _draw_costs(axes, points, i, cost)
    panels[0].set_ylabel(quality)
    panels[0].margins(y=0.12)
    legend_below(below, panels[0].get_legend_handles_labels()[0], min(4, len(points)))
    return save(figure, path)


def _draw_mask(axes: Axes, name: str, mask: np.ndarray) -> None:
    axes.imshow(mask, cmap=ListedColormap([LIGHT, BLUE]), vmin=0, vmax=1, interpolation="nearest",
                aspect="equal")
    axes.set_title(f"{name}\n{mask.mean():.0%} kept here", fontsize=9, loc="left")
    axes.set_xlabel("outputs", fontsize=8.5)
    axes.set_ylabel("inputs", fontsize=8.5)
    axes.tick_params(labelsize=7.5)


def _draw_costs(axes: Axes, points: Sequence[PrunedModel], i: int, cost: str) -> None:
    axes.axvline(1, color=DARK, linewidth=0.9, linestyle="--")
    for point, marker, color in zip(points, cycle(MARKERS), cycle(COLORS)):
        axes.scatter(point.costs[i], point.quality, marker=marker, color=color, s=48,
                     label=point.name, zorder=3)
    places = {point.name: (point.costs[i], point.quality) for point in points}
    axes.step(*zip(*[places[name] for name in pareto_front(places)]), where="post", color=DARK,
              linewidth=1, zorder=1)
    values = [point.costs[i] for point in points]
    if max(values) > 4:
        axes.set_xscale("log")
        axes.axvspan(1, max(values) * 1.5, color=LIGHT, alpha=0.5, zorder=0)
        axes.text(1, 1.02, "slower than dense", transform=axes.transAxes, ha="right", fontsize=8.5,
                  color=DARK)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(0, max(1.1, 1.05 * max(values)))
    axes.set_xlabel(cost)
    tidy(axes, "both")
