"""A step on three lanes, computing and copying out and in, and what is alive meanwhile.

    compute   ▐0▌▐1▌▐2▌▐3▌▐3▌▐2▌▒▒▒▐1▌▒▒▒▐0▌     numbers of parts; hatched: nothing to compute
    copy out     ▐─0─▌▐─1─▌
    copy in                   ▐─1─▌▐─0─▌         on a slow link a lane of copies is never idle
    bytes     ▁▂▃▃▃▃▄▄▅▅▅▄▄▄▄▄▃▃▃▃▂▂▂▁▁▁  ┄┄ the limit

The picture draws the steps alone, so that a test can compare it with them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from ..units import byte_unit, in_bytes, time_unit
from .colors import BLACK, COPY, GREY, PHASE, PURPLE, RED
from .figure import empty_figure, legend_below, save, tidy

LANES = "compute", "copy out", "copy in"
COLORS = {**{kind: PHASE[kind] for kind in ("forward", "again", "backward")},
          **COPY, "waiting": "white"}
WORDS = {"again": "forward again", "waiting": "nothing to compute"}
HEIGHT = 0.8            # of a box in its lane, which is 1 high
DIGIT = 0.011           # the width of a digit in a panel that is 1 wide


class OffloadStepLike(Protocol):
    """The fields that are read of a step: seconds, and bytes that are alive or copied."""

    lane: str
    kind: str
    part: int
    start: float
    end: float
    num_bytes: int


def draw_offload_timeline(path: str | Path, runs: Mapping[str, Sequence[OffloadStepLike]],
                          limit: int, title: str = "") -> Path:
    """Draw steps, by their titles, beside each other to one scale, and the limit of memory, in
    bytes; return the path written.  Raises ValueError if there is nothing to draw."""
    if not runs or not all(len(steps) for steps in runs.values()):
        raise ValueError("no steps to draw: give those of at least one run")
    figure = empty_figure(1 + 4.6 * len(runs), 4.3, title)
    until = max(step.end for steps in runs.values() for step in steps)
    top = max(limit, *[step.num_bytes for steps in runs.values() for step in computing(steps)])
    grid = figure.subplots(2, len(runs), squeeze=False, sharex=True, sharey="row",
                           height_ratios=(1.2, 1))
    unit, scale = time_unit(until)
    for (name, steps), lanes, memory in zip(runs.items(), *grid):
        end = max(step.end for step in computing(steps))
        lanes.set_title(f"{name}\n{end * scale:.3g} {unit}", loc="left", fontsize=10)
        lanes.set_xlim(0, until * scale)
        _draw_boxes(lanes, steps, scale, until)
        _draw_live(memory, computing(steps), limit, top, scale)
        memory.set_xlabel(f"time, {unit}")
    grid[0, 0].set_ylim(len(LANES) - 0.5, -0.5)
    size_unit, size = byte_unit(top)
    grid[1, 0].set_ylabel(f"live activations, {size_unit}")
    grid[1, 0].set_ylim(0, 1.25 * top / size)
    seen = {step.kind for steps in runs.values() for step in steps}
    legend_below(figure, [_look(Patch, kind, label=WORDS.get(kind, kind)) for kind in COLORS
                          if kind in seen], len(COLORS))
    return save(figure, path)


def computing(steps: Sequence[OffloadStepLike]) -> list[OffloadStepLike]:
    """The steps of the compute lane, waiting included."""
    return [step for step in steps if step.lane == LANES[0]]


def _look(shape: type, kind: str, *place, **options):
    hatch = {"hatch": "////", "edgecolor": GREY} if kind == "waiting" else {"edgecolor": "white"}
    return shape(*place, facecolor=COLORS[kind], linewidth=0.4, **hatch, **options)


def _draw_boxes(axes: Axes, steps: Sequence[OffloadStepLike], scale: float, until: float) -> None:
    for step in steps:
        row, width = LANES.index(step.lane), step.end - step.start
        if not width:
            continue
        axes.add_patch(_look(Rectangle, step.kind, (step.start * scale, row - HEIGHT / 2),
                             width * scale, HEIGHT, gid=step.kind))
        label = str(step.part)
        if step.kind != "waiting" and width > 1.6 * DIGIT * len(label) * until:
            axes.text((step.start + width / 2) * scale, row, label, fontsize=7, ha="center",
                      va="center", color="black" if step.kind == "again" else "white")
    axes.set_yticks(range(len(LANES)), LANES, fontsize=9)
    axes.tick_params(axis="y", length=0)
    tidy(axes)


def _draw_live(axes: Axes, steps: Sequence[OffloadStepLike], limit: int, top: int,
               scale: float) -> None:
    """Bytes alive in every step of computation, their peak, and the limit."""
    _, size = byte_unit(top)
    x = [*[step.start * scale for step in steps], steps[-1].end * scale]
    y = [step.num_bytes / size for step in steps]
    axes.fill_between(x, [*y, y[-1]], step="post", color=PURPLE, alpha=0.45,
                      linewidth=0.6)                # what lived for an instant is a hairline
    axes.axhline(limit / size, color=RED, linestyle="--", linewidth=1.2)
    axes.text(0.99, limit / size, f"limit {in_bytes(limit)}", fontsize=8, color=RED, ha="right",
              va="bottom", transform=axes.get_yaxis_transform())
    at = max(range(len(steps)), key=lambda i: steps[i].num_bytes)
    axes.plot((x[at] + x[at + 1]) / 2, y[at], "o", color=BLACK, markersize=4)
    axes.text(0.01, 0.97, f"peak {in_bytes(steps[at].num_bytes)}", fontsize=9, va="top",
              fontweight="bold", transform=axes.transAxes)
    tidy(axes, "y")
