"""The timeline of one step: what each rank computed, and the messages beside it.

    rank 1  ████████▒▒▒▒████████████▓▓▓      thick: computing (by phase), hatched where it waited
               ▂▂▂▂▂    ▂▂▂▂▂▂▂▂             thin: the messages this rank sent
              ▂▂▂▂▂▂▂                        and copies to its host memory,
                            ▂▂▂▂▂▂           and back from there

The picture draws `timeline_bars(trace)` (bars.py), plain data.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ...comm.mesh import DeviceMesh
from ...comm.trace import Trace
from ..colors import BLACK, KIND, MANY, PHASE
from ..figure import legend_below, save
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
from .lanes import NOTHING, fill_lanes, lane_panels, name_lanes, time_axis

ROWS = {COMPUTE: (-0.32, 0.42), MESSAGES: (0.14, 0.18)}     # (top, height), a lane being 1 high
WITH_COPIES = {COMPUTE: (-0.32, 0.34), MESSAGES: (0.04, 0.10),
               **{row: (0.17 + 0.13 * i, 0.10) for i, row in enumerate(COPIES)}}
MIDDLE = ROWS[COMPUTE][0] + ROWS[COMPUTE][1] / 2
Looks = dict[tuple[str, str], dict]         # by (kind, row)


def draw_timeline(path: str | Path, trace: Trace, title: str = "",
                  num_ranks: int | None = None, runs: Sequence[str] | None = None,
                  mesh: DeviceMesh | None = None) -> Path:
    """Draw what `trace` holds, one lane per rank, and return the path written.

    `num_ranks` adds lanes for ranks that did nothing.  `runs` names the lanes of several runs
    (`side_by_side`), instead of ranks.  `mesh` adds each rank's place along its axes.  Raises
    ValueError for an empty trace.
    """
    names = runs or [_name(rank, mesh) for rank in range(count_ranks(trace, num_ranks))]
    return _draw(path, [(title, trace, names)], apart=bool(runs))


def draw_timelines(path: str | Path, traces: Mapping[str, Trace]) -> Path:
    """Draw several runs by their titles, one above the other, to one scale of time.

    Returns the path written.  Raises ValueError for an empty trace.
    """
    return _draw(path, [(title, trace, [_name(rank) for rank in range(count_ranks(trace))])
                        for title, trace in traces.items()])


def _draw(path: str | Path, runs: Sequence[tuple[str, Trace, Sequence[str]]],
          apart: bool = False) -> Path:
    """Draw a panel for each run (title, trace, names of the lanes); return the path written."""
    for _, trace, _ in runs:
        refuse_empty(trace)
    figure, panels = lane_panels([len(names) for *_, names in runs], width=10, lane=0.62)
    longest, looks = max(trace.duration() for _, trace, _ in runs), {}
    for axes, (title, trace, names) in zip(panels, runs):
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        looks |= _draw_panel(axes, trace, names, longest, apart)
    words = {(kind, row): "messages" if kind == "message" else f"messages: {kind}"
             if row == MESSAGES else kind for kind, row in looks}
    legend_below(figure, [Patch(label=words[key], **look) for key, look in looks.items()], 6)
    return save(figure, path)


def _draw_panel(axes: Axes, trace: Trace, names: Sequence[str], until: float,
                apart: bool) -> Looks:
    """Draw one trace, from 0 to `until` seconds; return the looks that were used."""
    bars = timeline_bars(trace, len(names), resolution=until / 1000, apart=apart)
    rows = WITH_COPIES if any(bar.row in COPIES for bar in bars) else ROWS
    looks = _looks(bars)
    fill_lanes(axes, [(b.rank, (b.kind, b.row), b.start, b.end) for b in bars], looks,
               {key: rows[key[1]] for key in looks})
    if len(names) <= 16:
        _write_shares(axes, timeline_bars(trace, len(names), apart=apart), until, len(names))
    name_lanes(axes, names, MIDDLE, most=16)
    time_axis(axes, until)
    return looks


def _name(rank: int, mesh: DeviceMesh | None = None) -> str:
    """A rank of the world, and its place on the mesh: "rank 5", below it "pp 1  tp 1"."""
    if mesh is None:
        return f"rank {rank}"
    place = "  ".join(f"{axis} {i}" for axis, i in mesh.coordinates_of(rank).items())
    return f"rank {rank}\n{place}"


def _looks(bars: list[Bar]) -> Looks:
    """The look of each (kind, row) that the bars have, in the order of the legend."""
    kinds = {(bar.kind, bar.row) for bar in bars}
    waiting = (WAITING, COMPUTE)
    known = [(kind, row) for row in WITH_COPIES for kind in KIND if (kind, row) in kinds]
    colors = {key: KIND[key[0]] for key in known}
    taken = {*colors.values(), *(PHASE[phase] for phase in ("forward", "backward", "optimizer"))}
    free = [color for color in MANY if color not in taken]
    for i, key in enumerate(sorted(kinds - {*known, waiting})):
        colors[key] = free[i % len(free)]
    looks = {key: {"facecolor": color, "linewidth": 0} for key, color in colors.items()}
    return {**looks, **({waiting: NOTHING} if waiting in kinds else {})}


def _write_shares(axes: Axes, bars: list[Bar], until: float, num_ranks: int) -> None:
    """Write at the right of each lane the share of time that its rank computed."""
    for rank in range(num_ranks):
        row = [bar for bar in bars if bar.rank == rank and bar.row == COMPUTE]
        busy = sum(bar.end - bar.start for bar in row if bar.kind != WAITING)
        share = busy / (max((bar.end for bar in row), default=until) or 1.0)
        axes.text(until * 1.01, rank + MIDDLE, f"{share:.0%}" + "\nbusy" * (not rank),
                  va="center", fontsize=9, color=BLACK, clip_on=False)
