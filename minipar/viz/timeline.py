"""One step's timeline: who computed what, when, and which messages ran beside it.

    rank 1  ████████▒▒▒▒████████████▓▓▓      thick: computing (by phase), hatched where it waited
               ▂▂▂▂▂    ▂▂▂▂▂▂▂▂             thin: the messages this rank sent
              ▂▂▂▂▂▂▂                        and copies to its host memory,
                            ▂▂▂▂▂▂           and back from there

What is drawn is `lanes(trace)`, a list of rectangles as plain data, so that a test can compare the
picture with the trace.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..comm.copy_lane import COPY_IN, COPY_OUT
from ..comm.trace import Trace
from ..parallel.pipeline.schedules import FORWARD
from ..parallel.pipeline.table import CELL
from .colors import (
    BLACK,
    BLUE,
    DARK,
    GREEN,
    GREY,
    INDIGO,
    LIGHT,
    OLIVE,
    ORANGE,
    PALETTE,
    PURPLE,
    SKY,
    TEAL,
    VERMILION,
    WINE,
    YELLOW,
)
from .figure import new_figure, save, time_unit

COMPUTE, MESSAGES = "compute", "messages"
COPIES = COPY_OUT, COPY_IN
WAITING = "waiting"
# A span's name ends with its phase; what each phase is drawn as:
PHASES = {"forward": "forward", "again": "forward", "backward": "backward", "weights": "backward",
          "optimizer": "optimizer"}
COLORS = {"forward": BLUE, "backward": ORANGE, "optimizer": GREEN,
          "all_reduce": PURPLE, "broadcast": SKY, "activations": YELLOW, "gradients": VERMILION,
          "control": BLACK, "message": DARK, COPY_OUT: INDIGO, COPY_IN: TEAL}
ROWS = {COMPUTE: (-0.32, 0.42), MESSAGES: (0.14, 0.18)}     # (top, height), a lane being 1 high
WITH_COPIES = {COMPUTE: (-0.32, 0.34), MESSAGES: (0.04, 0.10), COPY_OUT: (0.17, 0.10),
               COPY_IN: (0.30, 0.10)}
MIDDLE = ROWS[COMPUTE][0] + ROWS[COMPUTE][1] / 2
MOST_ARROWS, SHORTEST_ARROW = 48, 0.02      # arrows; share of the whole time


class Bar(NamedTuple):
    """A rectangle: what `rank` did in one `row` of its lane from `start` to `end` (seconds).

    `row` is "compute", "messages", "copy out" or "copy in"; `kind` a phase, "waiting", what a
    message was part of, or the row again.
    """

    rank: int
    row: str
    kind: str
    start: float
    end: float


def lanes(trace: Trace, num_ranks: int | None = None, resolution: float = 0.0,
          apart: bool = False) -> list[Bar]:
    """The rectangles of the timeline; time 0 is the first event.

    A rank waits until the last event of all; if the ranks are `apart`, until its own last event.
    Bars of one row never overlap: neighbours of one kind are one bar, and messages that are under
    way at the same time share it.  Gaps of at most `resolution` seconds are closed.
    """
    messages, spans = trace.select() + trace.select(label="control"), trace.named_spans()
    if not messages and not spans:
        return []
    first = trace.first()
    last = max(event.end for event in (*messages, *spans))
    pieces: dict[tuple[int, str], list[tuple]] = {}
    for s in spans:
        kind = PHASES.get(s.name.rpartition(" ")[2], s.name)
        row = kind if kind in COPIES else COMPUTE
        pieces.setdefault((s.rank, row), []).append((s.start - first, s.end - first, kind))
    for m in messages:
        pieces.setdefault((m.source, MESSAGES), []).append(
            (m.start - first, m.end - first, _kind_of(m.label)))
    bars = []
    for rank in range(count_ranks(trace, num_ranks)):
        computed = join(rank, COMPUTE, pieces.get((rank, COMPUTE), []), resolution)
        sent = join(rank, MESSAGES, pieces.get((rank, MESSAGES), []), resolution)
        for row in COPIES:
            sent += join(rank, row, pieces.get((rank, row), []), resolution)
        end = max((bar.end for bar in computed + sent), default=0.0) if apart else last - first
        bars += computed + gaps(rank, COMPUTE, WAITING, computed, end, resolution) + sent
    return bars


def _kind_of(label: str) -> str:
    """What a message is drawn as: in a pipeline it is named after what made it, 2F0 or 2B0."""
    action = CELL.fullmatch(label)
    if action:
        return "activations" if action[2] == FORWARD else "gradients"
    return label or "message"


def count_ranks(trace: Trace, num_ranks: int | None = None) -> int:
    """How many ranks the events name, but at least `num_ranks`."""
    seen = [m[0] for m in trace.messages] + [m[1] for m in trace.messages]
    return max([num_ranks or 0, *(r + 1 for r in seen), *(s[0] + 1 for s in trace.spans)])


def refuse_empty(trace: Trace) -> None:
    """Raise ValueError for a trace without events."""
    if not trace.messages and not trace.spans:
        raise ValueError("the trace is empty: run on Cluster(n, trace=True), or comm.start_trace()")


def join(rank: int, row: str, pieces: Iterable[tuple], resolution: float = 0.0) -> list[Bar]:
    """Pieces (start, end, kind) in order, clipped where they overlap, joined where they touch."""
    bars: list[Bar] = []
    for start, end, kind in sorted(pieces):
        if bars and start - bars[-1].end <= resolution:
            start = bars[-1].end
            if kind == bars[-1].kind:
                bars[-1] = bars[-1]._replace(end=max(start, end))
                continue
        if end > start:
            bars.append(Bar(rank, row, kind, start, end))
    return bars


def gaps(rank: int, row: str, kind: str, bars: list[Bar], until: float,
         resolution: float = 0.0) -> list[Bar]:
    """What lies between `bars`, which are in order, from 0 to `until`."""
    starts, ends = [0.0, *(bar.end for bar in bars)], [*(bar.start for bar in bars), until]
    return [Bar(rank, row, kind, start, end) for start, end in zip(starts, ends)
            if end - start > resolution]


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """One rank's log of several runs as one trace, run i as rank i, each from time 0."""
    together = Trace()
    for i, trace in enumerate(traces):
        first = min(event[-2] for event in (*trace.messages, *trace.spans))
        together.messages += [(i, i, *m[2:4], *(t - first for t in m[4:])) for m in trace.messages]
        together.spans += [(i, s[1], s[2] - first, s[3] - first) for s in trace.spans]
    return together


def draw_timeline(trace: Trace, path: str | Path, title: str = "", arrows: bool = True,
                  num_ranks: int | None = None, runs: Sequence[str] | None = None) -> Path:
    """Draw what `trace` holds, one lane per rank, and return the path written.

    `num_ranks` adds lanes for ranks that did nothing.  `runs` are the names of lanes that are not
    ranks of one run, but several runs (`side_by_side`).  With `arrows` a message is also an arrow
    from its start in the sender's lane to its end in the receiver's, unless there are so many or
    so short ones that nobody could tell them apart.  Raises ValueError for an empty trace.
    """
    refuse_empty(trace)
    duration = trace.duration() or 1e-9          # if nothing took time
    bars = lanes(trace, num_ranks, resolution=duration / 1000, apart=bool(runs))
    num_ranks = count_ranks(trace, num_ranks)
    unit, scale = time_unit(duration)
    figure, axes = new_figure(10, min(12, 1.5 + 0.62 * num_ranks), title)
    colors = _colors(bars)
    _draw_bars(axes, bars, colors, scale)
    if arrows and trace.messages and _can_tell_apart(trace):
        _draw_arrows(axes, trace, scale)
    if num_ranks <= 16:
        _write_shares(axes, lanes(trace, num_ranks, apart=bool(runs)), duration, num_ranks, scale)
    axes.set_xlim(0, duration * scale)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    step = max(1, num_ranks // 16)
    shown = range(0, num_ranks, step)
    axes.set_yticks([r + MIDDLE for r in shown], [runs[r] if runs else f"rank {r}" for r in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time in {unit}")
    handles = [Patch(facecolor=color, label=_caption(kind, row),
                     **({"hatch": "////", "edgecolor": GREY} if kind == WAITING else {}))
               for (kind, row), color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)),
                  frameon=False, fontsize=9)
    return save(figure, path)


def _caption(kind: str, row: str) -> str:
    if row != MESSAGES:
        return kind
    return "messages" if kind == "message" else f"messages: {kind}"


def _colors(bars: list[Bar]) -> dict[tuple[str, str], str]:
    """A colour for each (kind, row) there is, in the order of the legend."""
    kinds = {(bar.kind, bar.row) for bar in bars}
    known = [(kind, row) for row in WITH_COPIES for kind in COLORS if (kind, row) in kinds]
    others = sorted(kinds - set(known) - {(WAITING, COMPUTE)})
    colors = {key: COLORS[key[0]] for key in known}
    free = [color for color in (*PALETTE, WINE, OLIVE) if color not in colors.values()]
    colors.update({key: free[i % len(free)] for i, key in enumerate(others)})
    return {**colors, **({(WAITING, COMPUTE): LIGHT} if (WAITING, COMPUTE) in kinds else {})}


def _draw_bars(axes: Axes, bars: list[Bar], colors: dict, scale: float) -> None:
    """One collection for each kind in each lane: thousands of bars stay fast."""
    groups: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for bar in bars:
        groups.setdefault((bar.rank, bar.row, bar.kind), []).append(
            (bar.start * scale, (bar.end - bar.start) * scale))
    rows = WITH_COPIES if any(bar.row in COPIES for bar in bars) else ROWS
    for (rank, row, kind), intervals in groups.items():
        top, height = rows[row]
        look = {"hatch": "////", "edgecolor": GREY} if kind == WAITING else {}
        axes.broken_barh(intervals, (rank + top, height), facecolor=colors[kind, row],
                         linewidth=0, **look)


def _can_tell_apart(trace: Trace) -> bool:
    lasting = sorted(end - start for *_, start, end in trace.messages)
    return (len(lasting) <= MOST_ARROWS
            and lasting[len(lasting) // 2] >= SHORTEST_ARROW * trace.duration())


def _draw_arrows(axes: Axes, trace: Trace, scale: float) -> None:
    first, middle = trace.first(), ROWS[MESSAGES][0] + ROWS[MESSAGES][1] / 2
    for message in trace.select() + trace.select(label="control"):
        axes.annotate("", ((message.end - first) * scale, message.dest + middle),
                      ((message.start - first) * scale, message.source + middle),
                      arrowprops={"arrowstyle": "-|>", "color": BLACK, "linewidth": 0.8,
                                  "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8})


def _write_shares(axes: Axes, bars: list[Bar], duration: float, num_ranks: int,
                  scale: float) -> None:
    """Right of each lane, the share of its time in which the rank computed."""
    for rank in range(num_ranks):
        row = [bar for bar in bars if bar.rank == rank and bar.row == COMPUTE]
        busy = sum(bar.end - bar.start for bar in row if bar.kind != WAITING)
        share = busy / max((bar.end for bar in row), default=duration)
        axes.text(duration * scale * 1.01, rank + MIDDLE,
                  f"{share:.0%}\nbusy" if not rank else f"{share:.0%}",
                  va="center", fontsize=9, color=BLACK, clip_on=False)
