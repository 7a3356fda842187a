"""A pipeline's timeline: the actions of each rank over time, its idle time, and its memory.

    rank 0  ▐0▌▐1▌▐2▌////////▐ 0 ▌//▐ 1 ▌      boxes: microbatches, coloured by kind; hatched: idle
            ▁▁▁▃▃▃▅▅▅▅▅▅▅▅▅▅▅▅▅▅▃▃▃▃▃▃▃▁▁      below: activations in memory

Simulated and measured runs have the same drawing.  Its rectangles are `boxes(timeline)`, plain
data that a test can compare.  A schedule with a fault is drawn up to the fault, which is red.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ..parallel.pipeline.schedule.metrics import bubble, memory, peak_memory
from ..parallel.pipeline.schedule.timeline import Timeline
from ..parallel.pipeline.schedule.validate import Fault
from ..units import in_bytes, time_unit
from .colors import BLACK, DARK, GREEN, GREY, LIGHT, ORANGE, PHASE, PURPLE, RED
from .figure import empty_figure, legend_below, new_figure, save, tidy

IDLE = "idle"
WORDS = {"F": "forward", "B": "backward (B = I + W)", "I": "input gradient (I)",
         "W": "weight gradient (W)", IDLE: "idle"}
COLORS = {"F": PHASE["forward"], "B": PHASE["backward"], "I": ORANGE, "W": GREEN, IDLE: LIGHT}
IN_MEMORY = PURPLE                       # activations
TOP, HEIGHT = -0.42, 0.5            # of the boxes in a lane, which is 1 high
FLOOR, ROOM = 0.46, 0.32            # of the memory below: where 0 is, how high the highest peak is
WIDTH, LANE, MOST_ARROWS = 11.0, 0.78, 160      # inches; messages
DIGIT = 0.085                       # inches that a digit of a microbatch's number takes
EDGED = 0.04                        # inches: a narrower box has no white edge, which would hide it


class Box(NamedTuple):
    """A rectangle: a rank did an action of this kind, or idled, from `start` to `end` (seconds).

    `nth` is the stage's place among the rank's own: 0, but for virtual stages; `microbatch` is -1
    of idle time.  Time 0 is the first action's start.
    """

    rank: int
    kind: str
    nth: int
    microbatch: int
    start: float
    end: float


def boxes(timeline: Timeline) -> list[Box]:
    """The boxes of all ranks, each rank's in the order of time: its actions, and the gaps."""
    first, until = timeline.first(), timeline.makespan()
    found = []
    for rank, row in enumerate(timeline.rows()):
        now = 0.0
        stages = sorted({interval.stage for interval in row})
        for i in row:
            if i.start - first > now:
                found.append(Box(rank, IDLE, 0, -1, now, i.start - first))
            now = i.end - first
            found.append(Box(rank, i.kind, stages.index(i.stage), i.microbatch, i.start - first,
                             now))
        if until > now:
            found.append(Box(rank, IDLE, 0, -1, now, until))
    return found


def draw_pipeline(path: str | Path, timeline: Timeline, title: str = "",
                  activation_bytes: float | Sequence[float] | None = None,
                  fault: Fault | None = None) -> Path:
    """Draw the timeline, and return the path written (.png, .svg or .pdf).

    `activation_bytes` are those of one microbatch, or a list with one value per stage; None counts
    microbatches.  `fault` is the fault at which the timeline ends.  Raises ValueError for a
    timeline without actions.
    """
    return save(pipeline_figure(timeline, title, activation_bytes, fault), path)


def pipeline_figure(timeline: Timeline, title: str = "",
                    activation_bytes: float | Sequence[float] | None = None,
                    fault: Fault | None = None) -> Figure:
    """The figure of `draw_pipeline`."""
    figure, axes = new_figure(WIDTH, min(24, 1.7 + LANE * timeline.num_ranks))
    _draw_panel(axes, timeline, title, activation_bytes, fault, timeline.makespan() or 1.0)
    _write_legend(figure, [timeline], activation_bytes is not None)
    return figure


def draw_pipelines(path: str | Path, timelines: Mapping[str, Timeline],
                   activation_bytes: float | Sequence[float] | None | Mapping[str, float] = None
                   ) -> Path:
    """Draw several runs by their titles, one above the other, on one scale of time and of memory.

    `activation_bytes` as in `draw_pipeline`, or by title where the runs have different stages.
    """
    each = (activation_bytes if isinstance(activation_bytes, Mapping)
            else dict.fromkeys(timelines, activation_bytes))
    lanes = [timeline.num_ranks for timeline in timelines.values()]
    figure = empty_figure(WIDTH, min(24, 0.8 + sum(0.9 + LANE * n for n in lanes)))
    panels = figure.subplots(len(lanes), 1, squeeze=False, height_ratios=lanes)[:, 0]
    until = max(timeline.makespan() for timeline in timelines.values())
    highest = max(max(_peaks(timeline, each[title])) for title, timeline in timelines.items())
    for axes, (title, timeline) in zip(panels, timelines.items()):
        _draw_panel(axes, timeline, title, each[title], None, until, highest)
        tidy(axes)
    _write_legend(figure, list(timelines.values()), None not in each.values())
    return save(figure, path)


def _draw_panel(axes: Axes, timeline: Timeline, title: str,
                activation_bytes: float | Sequence[float] | None, fault: Fault | None,
                until: float, highest: float | None = None) -> None:
    """Draw a lane for each rank; time ends at `until`, memory at `highest` (or the peak)."""
    if not timeline.intervals and fault is None:
        raise ValueError("nothing was done: a timeline needs at least one action to be drawn")
    drawn = boxes(timeline)
    unit, scale = time_unit(until)
    _draw_boxes(axes, drawn, scale, until)
    _draw_memory(axes, timeline, activation_bytes, scale, highest)
    if len(timeline.messages) <= MOST_ARROWS:
        _draw_arrows(axes, timeline, scale)
    if fault is None:
        share = bubble(timeline)
        said = (f"makespan {timeline.makespan() * scale:.4g} {unit}, bubble {share.of_total:.1%} "
                f"of the total, {share.of_ideal:.1%} of the ideal")
    else:
        said = fill(fault.sentence, 110)
        _draw_fault(axes, timeline, fault, scale)
    axes.set_title(f"{title}\n{said}" if title else said, loc="left", fontsize=11,
                   color=RED if fault else BLACK)
    step = max(1, timeline.num_ranks // 32)
    shown = range(0, timeline.num_ranks, step)
    axes.set_yticks([rank + TOP + HEIGHT / 2 for rank in shown], [timeline.name(r) for r in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(timeline.num_ranks - 0.5, -0.55)
    axes.set_xlim(0, max(axes.dataLim.x1, until * scale))
    axes.set_xlabel(f"time in {unit}")


def color_of(kind: str, nth: int) -> str:
    """The kind's colour, lighter for a rank's second stage, and lighter still for a third."""
    share = 1 - 0.75 ** nth
    red, green, blue = (c + (1 - c) * share for c in to_rgb(COLORS[kind]))
    return to_hex((red, green, blue))


def _draw_boxes(axes: Axes, drawn: list[Box], scale: float, duration: float) -> None:
    """Draw the boxes of each rank, kind and stage; numbers where there is room."""
    groups: dict[tuple[int, str, int], list[Box]] = {}
    for box in drawn:
        groups.setdefault((box.rank, box.kind, box.nth), []).append(box)
    for (rank, kind, nth), group in groups.items():
        idle = {"hatch": "////", "edgecolor": GREY, "linewidth": 0}
        longest = max(box.end - box.start for box in group) / duration * WIDTH
        edge = {"edgecolor": "white", "linewidth": 0.6 if longest > EDGED else 0}
        axes.broken_barh([(box.start * scale, (box.end - box.start) * scale) for box in group],
                         (rank + TOP, HEIGHT), facecolor=color_of(kind, nth), gid="boxes",
                         **(idle if kind == IDLE else edge))
    for box in drawn:
        text = str(box.microbatch)
        if box.kind != IDLE and (box.end - box.start) / duration * 0.85 * WIDTH > (
                DIGIT * len(text)):
            axes.text((box.start + box.end) / 2 * scale, box.rank + TOP + HEIGHT / 2, text,
                      ha="center", va="center_baseline", fontsize=8, clip_on=True,
                      color="white" if box.kind in "FB" and not box.nth else BLACK)


def _peaks(timeline: Timeline, activation_bytes: float | Sequence[float] | None) -> list[float]:
    """The memory peak of each rank, in bytes or in microbatches."""
    each = 1 if activation_bytes is None else activation_bytes
    return [peak_memory(timeline, rank, each) for rank in range(timeline.num_ranks)]


def _draw_memory(axes: Axes, timeline: Timeline,
                 activation_bytes: float | Sequence[float] | None, scale: float,
                 highest: float | None) -> None:
    """Draw each rank's memory as steps under its boxes, on one scale; its peak at the right."""
    each = 1 if activation_bytes is None else activation_bytes
    ranks, peaks = range(timeline.num_ranks), _peaks(timeline, activation_bytes)
    highest, first = highest or max(peaks) or 1, timeline.first()
    for rank in ranks:
        steps = [*memory(timeline, rank, each), (first + timeline.makespan(), 0)]
        times = [(time - first) * scale for time, _ in steps]
        levels = [rank + FLOOR - ROOM * amount / highest for _, amount in steps]
        axes.fill_between(times, levels, rank + FLOOR, step="post", color=IN_MEMORY, alpha=0.45,
                          linewidth=0)
        if len(ranks) <= 32:
            peak = f"{peaks[rank]:g}" if activation_bytes is None else in_bytes(peaks[rank])
            axes.annotate(f"peak {peak}", (1.005, rank + FLOOR - ROOM / 2),
                          xycoords=("axes fraction", "data"), va="center", fontsize=9, color=BLACK)


def _draw_arrows(axes: Axes, timeline: Timeline, scale: float) -> None:
    """Draw each message from the sender's box to the receiver's, behind the boxes between."""
    first = timeline.first()
    for message in timeline.messages:
        down = message.dest > message.source
        leave, reach = (TOP + HEIGHT, TOP) if down else (TOP, TOP + HEIGHT)
        axes.annotate("", ((message.end - first) * scale, message.dest + reach),
                      ((message.start - first) * scale, message.source + leave), zorder=0.5,
                      arrowprops={"arrowstyle": "-|>", "color": DARK, "linewidth": 0.6,
                                  "shrinkA": 0, "shrinkB": 0, "mutation_scale": 5})


def _draw_fault(axes: Axes, timeline: Timeline, fault: Fault, scale: float) -> None:
    """Draw a red frame at each place that the sentence names; a missing action goes at the end."""
    length = min((i.end - i.start for i in timeline.intervals), default=1.0)
    for number, (rank, position) in enumerate([(fault.rank, fault.position), *fault.others]):
        row = timeline.row(rank)
        if position < len(row):
            start, end = row[position].start, row[position].end
        else:
            start = row[-1].end if row else timeline.first()
            start += (position - len(row)) * length
            end = start + length
        start, end = (start - timeline.first()) * scale, (end - timeline.first()) * scale
        axes.add_patch(Rectangle((start, rank + TOP), end - start, HEIGHT, facecolor="none",
                                 edgecolor=RED, linewidth=2.5, gid="fault", zorder=5,
                                 clip_on=False, linestyle="--" if number else "-"))
        if not number:
            axes.text((start + end) / 2, rank + TOP + HEIGHT / 2, str(fault.action), color=RED,
                      ha="center", va="center_baseline", fontsize=9, fontweight="bold", zorder=6,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})


def _write_legend(figure: Figure, timelines: Sequence[Timeline], as_bytes: bool) -> None:
    drawn = [box for timeline in timelines for box in boxes(timeline)]
    arrows = any(0 < len(timeline.messages) <= MOST_ARROWS for timeline in timelines)
    in_memory = "activations in memory" if as_bytes else "microbatches in flight"
    kinds = [kind for kind in WORDS if any(box.kind == kind for box in drawn)]
    handles: list[Artist] = [
        Patch(facecolor=COLORS[kind], label=WORDS[kind], hatch="////" if kind == IDLE else None,
              edgecolor=GREY if kind == IDLE else None) for kind in kinds]
    if any(box.nth for box in drawn):
        handles.append(Patch(facecolor=color_of("F", 1), label="lighter: later stages of the rank"))
    handles.append(Patch(facecolor=IN_MEMORY, alpha=0.45, label=in_memory))
    if arrows:
        handles.append(Line2D([], [], color=DARK, linewidth=0.8, marker=">", markersize=4,
                              label="message"))
    legend_below(figure, handles, 7)
