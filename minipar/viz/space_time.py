"""The space-time diagram: ranks are lines, time runs to the right, a message is a slanted arrow.

    rank 0  ───●━━━━━━━━━━━━━━━      Blocked time is thick and red.  In a run that hung it has no
                ╲  16 B              end, and a dashed arrow says to whom, or from whom, a message
    rank 1  ─────▼━━━━━━━━━━━━━      was waited for.

Lamport 1978, Time, clocks, and the ordering of events in a distributed system, figure 1.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..comm.trace import Trace
from ..units import in_bytes, time_unit
from .bars import Bar, count_ranks, gaps, join
from .colors import BLACK, BLUE, DARK, PURPLE, RED
from .figure import empty_figure, legend_below, save, tidy

COMPUTING, TRANSFER, BLOCKED = "computing", "a message under way", "blocked"
LOOKS = {COMPUTING: (BLUE, 7), TRANSFER: (PURPLE, 4), BLOCKED: (RED, 4)}     # colour, line width
MOST_LABELS, APART = 64, 0.07       # of more messages no size is written; share of the width


class Wait(NamedTuple):
    """A wait that never ends: since `since`, `rank` waits to "send to" or "receive from" `peer`.

    `details` are the tag and the size of the message.
    """

    rank: int
    what: str
    peer: int
    details: str
    since: float


def waits_of(report: str, clocks: Sequence[float]) -> list[Wait]:
    """The waits that a deadlock report names; `clocks` is the time of each rank when it stopped."""
    found = re.findall(r"rank (\d+) waits to (send to|receive from) rank (\d+) \((.*?)\)", report)
    return [Wait(int(rank), what, int(peer), details, clocks[int(rank)])
            for rank, what, peer, details in found]


def states(trace: Trace, num_ranks: int | None = None, waits: Sequence[Wait] = ()) -> list[Bar]:
    """The states of each rank as bars: computing, a message under way, or blocked.

    All ranks begin at time 0.  A rank is blocked while it neither computes nor has a message under
    way, until its last event.  A rank with a `Wait` stays blocked, drawn until the last event of
    all ranks.
    """
    last, bars = _last(TracedRun("", trace, waits)), []
    spans, transfers = defaultdict(list), defaultdict(list)
    for rank, _, start, end in trace.spans:
        spans[rank].append((start, end, COMPUTING))
    for source, dest, *_, start, end in trace.messages:
        for rank in {source, dest}:
            transfers[rank].append((start, end, TRANSFER))
    for rank in range(count_ranks(trace, num_ranks)):
        computed = join(rank, COMPUTING, spans[rank])
        moving = join(rank, TRANSFER, transfers[rank])
        both = join(rank, "either", [(b.start, b.end, "either") for b in computed + moving])
        since = [wait.since for wait in waits if wait.rank == rank]
        until = last if since else both[-1].end if both else 0.0
        bars += computed + moving + gaps(rank, BLOCKED, BLOCKED, both, until)
    return bars


class TracedRun(NamedTuple):
    """One run to draw: its trace and, if it hung, what its ranks wait for."""

    title: str
    trace: Trace
    waits: Sequence[Wait] = ()
    num_ranks: int | None = None


def from_zero(run: TracedRun) -> TracedRun:
    """The same run with its first event at time 0, where a clock of real ranks never stands."""
    trace = run.trace
    starts = [trace.first()] if trace.messages or trace.spans else []
    first = min(starts + [wait.since for wait in run.waits], default=0.0)
    moved = Trace([(*m[:4], *(time - first for time in m[4:])) for m in trace.messages],
                  [(*s[:2], *(time - first for time in s[2:])) for s in trace.spans])
    return run._replace(trace=moved,
                        waits=[w._replace(since=w.since - first) for w in run.waits])


def draw_space_time(path: str | Path, *runs: TracedRun) -> Path:
    """Draw the runs one below the other, each from its first event; return the path written."""
    runs = [from_zero(run) for run in runs]
    sizes = [_count(run) for run in runs]
    figure = empty_figure(9, 0.6 + sum(1.1 + 0.75 * size for size in sizes))
    panels = figure.subplots(len(runs), squeeze=False, height_ratios=[1 + s for s in sizes])[:, 0]
    end = max(_last(run) * (1.6 if run.waits else 1) for run in runs) or 1e-6
    shown: set[str] = set()
    for axes, run in zip(panels, runs):
        shown |= _draw_run(axes, run, end)
    handles = [Line2D([], [], color=color, linewidth=width, label=kind)
               for kind, (color, width) in LOOKS.items() if kind in shown]
    if any(run.waits for run in runs):
        handles.append(Line2D([], [], color=RED, linestyle="--", label="never happens"))
    legend_below(figure, handles, 4)
    return save(figure, path)


def _count(run: TracedRun) -> int:
    peers = [number for wait in run.waits for number in (wait.rank, wait.peer)]
    return max([count_ranks(run.trace, run.num_ranks), *(number + 1 for number in peers)])


def _last(run: TracedRun) -> float:
    """The time of the last event."""
    ends = [event[-1] for event in (*run.trace.messages, *run.trace.spans)]
    return max(ends + [wait.since for wait in run.waits], default=0.0)


def _draw_run(axes: Axes, run: TracedRun, end: float) -> set[str]:
    """Fill one panel, from 0 to `end` seconds; return the states that it shows."""
    num_ranks, bars = _count(run), states(run.trace, run.num_ranks, run.waits)
    unit, scale = time_unit(end)
    end *= scale
    axes.set_title(run.title, loc="left", fontsize=11, fontweight="bold")
    axes.hlines(range(num_ranks), 0, end, color=DARK, linewidth=1, zorder=1)
    for bar in bars:
        color, width = LOOKS[bar.kind]
        axes.plot([bar.start * scale, bar.end * scale], [bar.rank] * 2, color=color,
                  linewidth=width, solid_capstyle="butt", zorder=2 + (bar.kind == COMPUTING))
    messages = run.trace.select() + run.trace.select(label="control")
    written: list[tuple[float, float]] = []         # where sizes are; none beside another
    for message in messages:
        _arrow(axes, (message.start * scale, message.source), (message.end * scale, message.dest))
        along = 0.5 / max(1, abs(message.source - message.dest))    # between two ranks' lines
        x = (message.start + along * (message.end - message.start)) * scale
        y = message.source + along * (message.dest - message.source)
        if len(messages) <= MOST_LABELS and not any(
                abs(y - v) < 0.2 and abs(x - u) < APART * end for u, v in written):
            written.append((x, y))
            _label(axes, x, y, in_bytes(message.num_bytes))
    for wait in run.waits:
        _draw_wait(axes, wait, wait.since * scale, end)
    axes.set_xlim(-0.01 * end, end)
    axes.set_ylim(num_ranks - 0.4, -0.6)
    axes.set_yticks(range(num_ranks), [f"rank {r}" for r in range(num_ranks)])
    axes.tick_params(axis="y", length=0)
    tidy(axes)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"time in {unit}")
    return {bar.kind for bar in bars} | ({BLOCKED} if run.waits else set())


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look) -> None:
    axes.annotate("", end, start, zorder=4, arrowprops={
        "arrowstyle": "-|>", "color": BLACK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 1, **look})


def _label(axes: Axes, x: float, y: float, text: str, color: str = BLACK) -> None:
    axes.text(x, y, text, fontsize=8, color=color, ha="center", va="center", zorder=5,
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def _draw_wait(axes: Axes, wait: Wait, since: float, end: float) -> None:
    """The blocked line without an end, a dashed arrow for the message, a few words above."""
    axes.plot([since, end], [wait.rank] * 2, color=LOOKS[BLOCKED][0], linewidth=LOOKS[BLOCKED][1],
              solid_capstyle="butt", zorder=2)
    toward = wait.rank + 0.42 * (1 if wait.peer > wait.rank else -1)
    points = [(since, wait.rank), (since + 0.035 * end, toward)]
    if wait.what == "receive from":
        points.reverse()
    _arrow(axes, *points, color=RED, linestyle="--")
    axes.text(since + 0.055 * end, wait.rank - 0.13,
              f"waits to {wait.what} rank {wait.peer} ({wait.details})", fontsize=8.5, color=RED,
              va="bottom", zorder=5)
