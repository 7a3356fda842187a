"""The timeline of one step: what each rank computed, and the messages beside it.

    rank 1  ████████▒▒▒▒████████████▓▓▓      thick: computing (by phase), hatched where it waited
               ▂▂▂▂▂    ▂▂▂▂▂▂▂▂             thin: the messages this rank sent
              ▂▂▂▂▂▂▂                        and copies to its host memory,
                            ▂▂▂▂▂▂           and back from there

The picture draws `timeline_bars(trace)` (bars.py), a list of rectangles as plain data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..comm.mesh import DeviceMesh
from ..comm.simulated.copy_stream import COPY_IN, COPY_OUT
from ..comm.trace import Trace
from ..units import time_unit
from .bars import (
    COMPUTE,
    COPIES,
    MESSAGES,
    WAITING,
    Bar,
    count_ranks,
    refuse_empty,
    timeline_bars,
)
from .colors import (
    BLACK,
    COPY,
    DARK,
    GREY,
    LIGHT,
    OLIVE,
    ORANGE,
    PALETTE,
    PHASE,
    PURPLE,
    SKY,
    WINE,
    YELLOW,
)
from .figure import empty_figure, legend_below, new_figure, save, tidy

COLORS = {**PHASE,
          "all_reduce": PURPLE, "broadcast": SKY, "activations": YELLOW, "gradients": ORANGE,
          "control": BLACK, "message": DARK, **COPY}
ROWS = {COMPUTE: (-0.32, 0.42), MESSAGES: (0.14, 0.18)}     # (top, height), a lane being 1 high
WITH_COPIES = {COMPUTE: (-0.32, 0.34), MESSAGES: (0.04, 0.10), COPY_OUT: (0.17, 0.10),
               COPY_IN: (0.30, 0.10)}
MIDDLE = ROWS[COMPUTE][0] + ROWS[COMPUTE][1] / 2
MOST_ARROWS, SHORTEST_ARROW = 48, 0.02      # arrows; share of the whole time


def draw_timeline(path: str | Path, trace: Trace, title: str = "", arrows: bool = True,
                  num_ranks: int | None = None, runs: Sequence[str] | None = None,
                  mesh: DeviceMesh | None = None) -> Path:
    """Draw what `trace` holds, one lane per rank, and return the path written.

    `num_ranks` adds lanes for ranks that did nothing.  `runs` names the lanes of several runs
    (`side_by_side`), instead of ranks.  `mesh` adds each rank's place along its axes.  With
    `arrows` a message is also an arrow from the sender's lane to the receiver's, unless the
    messages are too many or too short to be told apart.  Raises ValueError for an empty trace.
    """
    refuse_empty(trace)
    num_ranks = count_ranks(trace, num_ranks)
    figure, axes = new_figure(10, min(12, 1.5 + 0.62 * num_ranks), title)
    colors = _draw_panel(axes, trace, num_ranks, trace.duration(), arrows, runs, mesh)
    _write_legend(figure, colors)
    return save(figure, path)


def draw_timelines(path: str | Path, traces: Mapping[str, Trace]) -> Path:
    """Draw several runs by their titles, one above the other, to one scale of time.

    Returns the path written.  Raises ValueError for an empty trace.
    """
    for trace in traces.values():
        refuse_empty(trace)
    sizes = [count_ranks(trace) for trace in traces.values()]
    figure = empty_figure(10, min(24, 0.6 + sum(0.9 + 0.62 * size for size in sizes)))
    panels = figure.subplots(len(sizes), squeeze=False, height_ratios=[1 + n for n in sizes])[:, 0]
    longest, colors = max(trace.duration() for trace in traces.values()), {}
    for axes, (title, trace), num_ranks in zip(panels, traces.items(), sizes):
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        tidy(axes)
        colors |= _draw_panel(axes, trace, num_ranks, longest, arrows=False)
    _write_legend(figure, colors)
    return save(figure, path)


def _draw_panel(axes: Axes, trace: Trace, num_ranks: int, until: float, arrows: bool = True,
                runs: Sequence[str] | None = None,
                mesh: DeviceMesh | None = None) -> dict[tuple[str, str], str]:
    """Draw one trace, from 0 to `until` seconds; return the colours that were used."""
    until = until or 1e-9                        # if nothing took time
    bars = timeline_bars(trace, num_ranks, resolution=until / 1000, apart=bool(runs))
    unit, scale = time_unit(until)
    colors = _colors(bars)
    _draw_bars(axes, bars, colors, scale)
    if arrows and trace.messages and _can_tell_apart(trace):
        _draw_arrows(axes, trace, scale)
    if num_ranks <= 16:
        _write_shares(axes, timeline_bars(trace, num_ranks, apart=bool(runs)), until, num_ranks,
                      scale)
    axes.set_xlim(0, until * scale)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    step = max(1, num_ranks // 16)
    shown = range(0, num_ranks, step)
    axes.set_yticks([r + MIDDLE for r in shown],
                    [runs[r] if runs else _name(r, mesh) for r in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time in {unit}")
    return colors


def _name(rank: int, mesh: DeviceMesh | None) -> str:
    """A rank of the world, and its place on the mesh: "rank 5", below it "pp 1  tp 1"."""
    if mesh is None:
        return f"rank {rank}"
    place = "  ".join(f"{axis} {i}" for axis, i in mesh.coordinates_of(rank).items())
    return f"rank {rank}\n{place}"


def _write_legend(figure: Figure, colors: dict[tuple[str, str], str]) -> None:
    handles = [Patch(facecolor=color, label=_caption(kind, row),
                     **({"hatch": "////", "edgecolor": GREY} if kind == WAITING else {}))
               for (kind, row), color in colors.items()]
    legend_below(figure, handles, 6)


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
    taken = {*colors.values(), *(PHASE[phase] for phase in ("forward", "backward", "optimizer"))}
    free = [color for color in (*PALETTE, WINE, OLIVE) if color not in taken]
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
