"""A plan of rematerialization being executed: which part runs when, and what is alive meanwhile.

    part 0  ▐F▌                          ▐A▌▐ B ▌     F forward, A forward again, B backward
    part 1     ▐F▌             ▐A▌▐ B ▌
    part 2        ▐F▌▐A▌▐ B ▌                         time is counted in FLOPs
    bytes   ▁▁▂▂▂▂▃▃▃▆▆▆▅▅▅▅▅▅▅▅▆▆▆▅▅▅▂▂▅▅▅▅▅▅

The picture draws `boxes(steps)`, plain data, so that a test can compare them with the steps.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch, Rectangle

from ..units import byte_unit, in_bytes
from .colors import BLACK, PHASE, PURPLE
from .figure import legend_below, tidy

COLORS = {kind: PHASE[kind] for kind in ("forward", "again", "backward")}
WORDS = {"forward": "forward", "again": "forward again", "backward": "backward"}
HEIGHT = 0.8            # of a box in its lane, which is 1 high


class RematStepLike(Protocol):
    """The fields that are read of a step; `live` in bytes."""

    kind: str
    part: int
    flops: int
    live: int


class Box(NamedTuple):
    """A part runs from `start` to `end`, in FLOPs since the beginning."""

    kind: str
    part: int
    start: int
    end: int
    live: int


def boxes(steps: Sequence[RematStepLike]) -> list[Box]:
    """One after the other, as they are computed; what takes no FLOPs has no width."""
    ends = np.cumsum([step.flops for step in steps], dtype=object)
    return [Box(step.kind, step.part, end - step.flops, end, step.live)
            for step, end in zip(steps, ends)]


def draw_runs(figure: Figure | SubFigure, runs: Mapping[str, Sequence[RematStepLike]],
              names: Sequence[str]) -> None:
    """Draw runs of plans, by their titles, beside each other to one scale; `names` of the parts.

    Raises ValueError if there is no run, or one without steps.
    """
    if not runs or not all(len(steps) for steps in runs.values()):
        raise ValueError("no steps to draw: give the steps of at least one plan")
    drawn = {title: boxes(steps) for title, steps in runs.items()}
    until = max(box.end for found in drawn.values() for box in found)
    top = max(box.live for found in drawn.values() for box in found)
    grid = figure.subplots(2, len(drawn), squeeze=False, sharex=True, sharey="row",
                           height_ratios=(0.22 * len(names), 1.3))
    for (title, found), lanes, memory in zip(drawn.items(), *grid):
        _draw_lanes(lanes, found, names)
        _draw_live(memory, found, top)
        lanes.set_title(title, loc="left", fontsize=10.5)
        lanes.set_xlim(0, until / 1e6)
    grid[0, 0].set_yticks(range(len(names)), names, fontsize=8)
    grid[0, 0].set_ylim(len(names) - 0.4, -0.6)
    unit, size = byte_unit(top)
    grid[1, 0].set_ylabel(f"live, {unit}")
    grid[1, 0].set_ylim(0, 1.3 * top / size)
    legend_below(figure, [*[Patch(facecolor=COLORS[kind], label=WORDS[kind]) for kind in COLORS],
                          Patch(facecolor=PURPLE, alpha=0.45, label="live activations")], 4)


def _draw_lanes(axes: Axes, found: Sequence[Box], names: Sequence[str]) -> None:
    for box in found:
        if box.kind in COLORS:
            axes.add_patch(Rectangle((box.start / 1e6, box.part - HEIGHT / 2),
                                     (box.end - box.start) / 1e6, HEIGHT, gid=box.kind,
                                     facecolor=COLORS[box.kind], edgecolor="white",
                                     linewidth=0.3))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    tidy(axes)


def _draw_live(axes: Axes, found: Sequence[Box], top: int) -> None:
    """Live bytes of every step, and the peak."""
    _, size = byte_unit(top)
    x = [0, *[box.end / 1e6 for box in found]]
    y = [box.live / size for box in found]
    axes.fill_between(x, [*y, y[-1]], step="post", color=PURPLE, alpha=0.45, linewidth=0)
    at = max(range(len(found)), key=lambda i: found[i].live)
    middle = (x[at] + x[at + 1]) / 2
    axes.plot(middle, y[at], "o", color=BLACK, markersize=4)
    late = middle > 0.6 * x[-1]
    axes.annotate(f"peak {in_bytes(found[at].live)}", (middle, y[at]),
                  xytext=(-4 if late else 4, 4), textcoords="offset points",
                  ha="right" if late else "left", fontsize=9, fontweight="bold")
    axes.set_xlabel("computed so far, in MFLOPs")
    tidy(axes, "y")
