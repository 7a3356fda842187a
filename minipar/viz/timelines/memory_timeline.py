"""Live memory over one training step: areas stacked by kind, strategies side by side.

    bytes  ┌ peak                      at the bottom parameters and optimizer states, which last;
           ├──╮  ╭╮╭╮                  above them what comes and goes: gradients, messages,
           │▒▒╰──╯╰╯╰──╮               activations, temporaries
           │░░░░░░░░░░░░ time

The picture draws `live_levels(history, …)`, arrays as plain data, so that a test can compare them
with the ledger.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ...comm.trace import Trace
from ..colors import BLACK, BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW
from ..figure import in_units, legend_below, new_panels, save
from .bars import PHASES
from .lanes import time_axis, write_peak

# From the bottom of the stack to its top, and the colour of each; the kinds are the ledger's.
COLORS = {"parameters": BLUE, "optimizer states": GREEN, "gradients": ORANGE,
          "communication": SKY, "activations": GREY, "temporaries": YELLOW}
OFFLOADED = "offloaded"                         # a line of its own: elsewhere, not on the stack
CAPTIONS = {"communication": "gathered weights, messages",
            "temporaries": "temporaries of operations"}


class MemoryStep(NamedTuple):
    """The history of one rank's ledger from `start` to `end`, on the clock of that history.

    `predicted` has the bytes that the peak should have, and the formula.  `phases` say when
    "forward", … began, in order of time (`phase_starts`).
    """

    title: str
    history: Sequence[tuple[float, str, int]]
    start: float
    end: float
    predicted: tuple[float, str] | None = None
    phases: Sequence[tuple[float, str]] = ()


def live_levels(history: Sequence[tuple[float, str, int]], start: float,
                end: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(times (n,), live bytes (n,) of each kind from each time on), from `start` to `end`.

    Changes at one moment keep their order: each is a time of its own.
    """
    now = {kind: 0 for _, kind, _ in history}
    now.update((kind, live) for time, kind, live in history if time < start)
    times, rows = [start], [dict(now)]
    for time, kind, live in history:
        if start <= time <= end:
            now[kind] = live
            times.append(time)
            rows.append(dict(now))
    times.append(end)
    rows.append(now)
    return np.array(times), {kind: np.array([row[kind] for row in rows]) for kind in now}


def peak_of(step: MemoryStep, kinds: Sequence[str] = tuple(COLORS)) -> tuple[float, int]:
    """(time, bytes) of the first moment at which the kinds together are largest."""
    times, live = live_levels(step.history, step.start, step.end)
    total = sum((live[kind] for kind in kinds if kind in live), np.zeros(len(times), int))
    return float(times[np.argmax(total)]), int(np.max(total))


def phase_starts(trace: Trace, rank: int) -> list[tuple[float, str]]:
    """The start of each phase of a step on a rank, in order of time.

    Phases are forward, backward and optimizer; equal ones in a row are one phase.  Recomputation is
    a part of backward.
    """
    phases = {**PHASES, "again": "backward"}
    spans = sorted((span.start, phase) for span in trace.named_spans() if span.rank == rank
                   and (phase := phases.get(span.name.rpartition(" ")[2])) is not None)
    return [(when, phase) for i, (when, phase) in enumerate(spans)
            if i == 0 or spans[i - 1][1] != phase]


def draw_memory_timeline(path: str | Path, steps: Sequence[MemoryStep], title: str = "",
                         kinds: Sequence[str] = tuple(COLORS),
                         num_parameters: int | None = None) -> Path:
    """Draw a panel for each step, all to one scale of bytes and of time; return the path written.

    `kinds` are stacked, and the peak is that of their sum.  With `num_parameters` the y axis at the
    right counts in bytes per parameter.  Raises ValueError if there is nothing to draw.
    """
    if not steps or not any(peak_of(step, kinds)[1] for step in steps):
        raise ValueError("no memory to draw: record with Ledger(now=comm.now), entered before the "
                         "model is made")
    figure, grid = new_panels(max(8.5, 3.9 * len(steps)), 4.6, title, columns=len(steps),
                              grid="y", sharey=True)
    panels = grid[0]
    longest = max(step.end - step.start for step in steps)
    for axes, step in zip(panels, steps):
        draw_step(axes, step, kinds, longest)
    panels[0].set(ylim=(0, 1.22 * max(axes.dataLim.y1 for axes in panels)),
                  ylabel="live memory of one rank")
    in_units(panels[0].yaxis, "B")
    if num_parameters:
        right = panels[-1].secondary_yaxis("right", functions=(
            lambda y: y / num_parameters, lambda y: y * num_parameters))
        right.set_ylabel("bytes per parameter of the model")
        right.yaxis.set_major_locator(MaxNLocator(steps=[2, 4], nbins=8))
    seen = {kind for step in steps for _, kind, live in step.history if live}
    handles = [Patch(facecolor=COLORS[kind], label=CAPTIONS.get(kind, kind))
               for kind in COLORS if kind in kinds and kind in seen]
    if OFFLOADED in seen:
        handles.append(Line2D([], [], color=PURPLE, label="offloaded, not in memory"))
    if any(step.predicted for step in steps):
        handles.append(Line2D([], [], color=BLACK, linestyle="--", label="predicted peak"))
    legend_below(figure, handles, len(handles))
    return save(figure, path)


def draw_step(axes: Axes, step: MemoryStep, kinds: Sequence[str], duration: float) -> None:
    """Draw one panel of `duration` seconds: areas, the peak with its bytes, the predicted peak."""
    times, live = live_levels(step.history, step.start, step.end)
    stacked = [kind for kind in COLORS if kind in kinds and kind in live]
    time_axis(axes, duration)
    axes.xaxis.set_major_locator(MaxNLocator(4))            # panels are narrow
    for area in axes.stackplot(times - step.start, [live[kind] for kind in stacked], step="post",
                               colors=[COLORS[kind] for kind in stacked]):
        area.set(edgecolor="face", linewidth=0.5)   # what lived for an instant is a hairline
    if OFFLOADED in live:
        axes.step(times - step.start, live[OFFLOADED], where="post", color=PURPLE, linewidth=1.4)
    when, peak = peak_of(step, kinds)
    write_peak(axes, when - step.start, peak)
    said = [step.title] if step.title else []
    if step.predicted:
        axes.axhline(step.predicted[0], color=BLACK, linestyle="--", linewidth=1.2)
        said.append(step.predicted[1])
    axes.set_title("\n".join(said), loc="left", fontsize=10.5)
    _mark_phases(axes, step, duration)


def _mark_phases(axes: Axes, step: MemoryStep, duration: float) -> None:
    """Draw a line where each phase begins, and its name where there is room for it."""
    width = axes.get_position().width * axes.figure.get_figwidth()          # in inches
    ends = [*(when for when, _ in step.phases[1:]), step.end]
    for i, ((when, name), until) in enumerate(zip(step.phases, ends)):
        x = when - step.start
        if i:
            axes.axvline(x, color=DARK, linestyle=":", linewidth=1)
        if (until - when) / duration * width > 0.55:
            axes.text(x, 0.98, f" {name}", va="top", fontsize=9, color=DARK,
                      transform=axes.get_xaxis_transform())
        elif until == step.end and (when - step.phases[i - 1][0]) / duration * width > 1.7:
            axes.text(x, 0.98, f"{name} → ", va="top", ha="right", fontsize=9, color=DARK,
                      transform=axes.get_xaxis_transform())
