"""The space-time diagram: ranks are lines, time runs to the right, a message is a slanted arrow.

    rank 0  ───●━━━━━━━━━━━━━━━      Blocked time is thick and red.  In a run that hung it has no
                ╲  16 B              end, and a dashed arrow shows the message that the rank
    rank 1  ─────▼━━━━━━━━━━━━━      waits for.

Lamport 1978, Time, clocks, and the ordering of events in a distributed system, figure 1.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ...units import in_bytes
from ..colors import BLACK, BLUE, DARK, PURPLE, RED
from ..figure import arrow, legend_below, save
from .bars import BLOCKED, COMPUTING, TRANSFER, EndlessWait, TracedRun, states
from .lanes import lane_panels, name_lanes, time_axis

LOOKS = {COMPUTING: {"color": BLUE, "linewidth": 7}, TRANSFER: {"color": PURPLE, "linewidth": 4},
         BLOCKED: {"color": RED, "linewidth": 4}}
MOST_LABELS, APART = 64, 0.07       # more messages get no sizes; share of the width


def draw_space_time(path: str | Path, *runs: TracedRun) -> Path:
    """Draw the runs one below the other, each from its first event; return the path written."""
    runs = [run.from_zero() for run in runs]
    sizes = [run.size() for run in runs]
    figure, panels = lane_panels(sizes, 9, 0.75)
    end = max(run.last() * (1.6 if run.waits else 1) for run in runs) or 1e-6
    shown: set[str] = set()
    for axes, run, size in zip(panels, runs, sizes):
        shown |= _draw_run(axes, run, size, end)
    handles = [Line2D([], [], label=kind, **look) for kind, look in LOOKS.items() if kind in shown]
    if any(run.waits for run in runs):
        handles.append(Line2D([], [], color=RED, linestyle="--", label="never happens"))
    legend_below(figure, handles, 4)
    return save(figure, path)


def _draw_run(axes: Axes, run: TracedRun, num_ranks: int, end: float) -> set[str]:
    """Fill one panel, from 0 to `end` seconds; return the states that it shows."""
    bars = states(run.trace, run.num_ranks, run.waits)
    axes.set_title(run.title, loc="left", fontsize=11, fontweight="bold")
    axes.hlines(range(num_ranks), 0, end, color=DARK, linewidth=1, zorder=1)
    for bar in bars:
        axes.plot([bar.start, bar.end], [bar.rank] * 2, solid_capstyle="butt",
                  zorder=2 + (bar.kind == COMPUTING), **LOOKS[bar.kind])
    messages = run.trace.select() + run.trace.select(label="control")
    written: list[tuple[float, float]] = []         # places of sizes, which are kept apart
    for message in messages:
        arrow(axes, (message.start, message.source), (message.end, message.dest), color=BLACK,
              shrinkB=1)
        along = 0.5 / max(1, abs(message.source - message.dest))    # between two ranks' lines
        x = message.start + along * (message.end - message.start)
        y = message.source + along * (message.dest - message.source)
        if len(messages) <= MOST_LABELS and not any(
                abs(y - v) < 0.2 and abs(x - u) < APART * end for u, v in written):
            written.append((x, y))
            axes.text(x, y, in_bytes(message.num_bytes), fontsize=8, color=BLACK, ha="center",
                      va="center", zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    for wait in run.waits:
        _draw_wait(axes, wait, end)
    name_lanes(axes, [f"rank {rank}" for rank in range(num_ranks)])
    axes.spines["left"].set_visible(False)
    time_axis(axes, end)
    axes.set_xlim(left=-0.01 * end)
    return {bar.kind for bar in bars} | ({BLOCKED} if run.waits else set())


def _draw_wait(axes: Axes, wait: EndlessWait, end: float) -> None:
    """Draw a blocked line up to the end, a dashed arrow for the message, a few words above."""
    axes.plot([wait.since, end], [wait.rank] * 2, solid_capstyle="butt", zorder=2,
              **LOOKS[BLOCKED])
    toward = wait.rank + 0.42 * (1 if wait.peer > wait.rank else -1)
    points = [(wait.since, wait.rank), (wait.since + 0.035 * end, toward)]
    if wait.what == "receive from":
        points.reverse()
    arrow(axes, *points, color=RED, linestyle="--", shrinkB=1)
    axes.text(wait.since + 0.055 * end, wait.rank - 0.13,
              f"waits to {wait.what} rank {wait.peer} ({wait.details})", fontsize=8.5, color=RED,
              va="bottom", zorder=5)
