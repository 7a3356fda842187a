"""A pipeline's timeline: the actions of each rank over time, its idle time, and its memory.

    rank 0  ▐0▌▐1▌▐2▌////////▐ 0 ▌//▐ 1 ▌      boxes: microbatches, coloured by kind; hatched: idle
            ▁▁▁▃▃▃▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▃▃▃▃▃▃▃▁▁      below: activations in memory

Simulated and measured runs have the same drawing.  Its rectangles are `boxes(timeline)`, plain
data that a test can compare.  A schedule with a fault is drawn up to the fault, which is red.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ...parallel.pipeline.schedule.metrics import bubble, memory, peak_memory
from ...parallel.pipeline.schedule.timeline import Timeline
from ...parallel.pipeline.schedule.validate import Fault
from ...units import in_bytes, time_unit
from ..colors import BLACK, DARK, GREEN, LIGHT, ORANGE, PHASE, PURPLE, RED
from ..figure import arrow, legend_below, save
from .bars import gaps
from .lanes import NOTHING, fill_lanes, lane_panels, name_lanes, time_axis

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
Bytes = float | Sequence[float] | None          # activations of a microbatch, of all or each stage


class Box(NamedTuple):
    """A rectangle: a rank did an action of this kind, or idled, from `start` to `end` (seconds).

    `nth` is the stage's place among the rank's own stages: 0 without virtual stages.  `microbatch`
    is -1 for idle time.  Time 0 is the first action's start.
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
        stages = sorted({interval.stage for interval in row})
        done = [Box(rank, i.kind, stages.index(i.stage), i.microbatch, i.start - first,
                    i.end - first) for i in row]
        idle = [Box(rank, IDLE, 0, -1, gap.start, gap.end)
                for gap in gaps(rank, "", IDLE, done, until)]
        found += sorted(done + idle, key=lambda box: box.start)
    return found


def draw_pipeline(path: str | Path, timeline: Timeline, title: str = "",
                  activation_bytes: Bytes = None, fault: Fault | None = None) -> Path:
    """Draw the timeline, and return the path written (.png, .svg or .pdf).

    `activation_bytes` are the bytes of one microbatch, or a list with one value per stage; None
    counts microbatches.  `fault` is the fault at which the timeline ends.  Raises ValueError for a
    timeline without actions.
    """
    return save(pipeline_figure({title: timeline}, activation_bytes, fault), path)


def draw_pipelines(path: str | Path, timelines: Mapping[str, Timeline],
                   activation_bytes: Bytes | Mapping[str, float] = None) -> Path:
    """Draw several runs by their titles, one above the other, on one scale of time and of memory.

    `activation_bytes` are as in `draw_pipeline`, or by title if the runs have different stages.
    """
    return save(pipeline_figure(timelines, activation_bytes), path)


def pipeline_figure(timelines: Mapping[str, Timeline],
                    activation_bytes: Bytes | Mapping[str, float] = None,
                    fault: Fault | None = None) -> Figure:
    """The figure of `draw_pipeline` and `draw_pipelines`."""
    if fault is None and not all(timeline.intervals for timeline in timelines.values()):
        raise ValueError("nothing was done: a timeline needs at least one action to be drawn")
    as_bytes = activation_bytes is not None
    each = (activation_bytes if isinstance(activation_bytes, Mapping)
            else dict.fromkeys(timelines, activation_bytes if as_bytes else 1))
    figure, panels = lane_panels([t.num_ranks for t in timelines.values()], WIDTH, LANE)
    until = max(timeline.makespan() for timeline in timelines.values()) or 1.0
    highest = max(peak_memory(timeline, rank, each[title]) for title, timeline in timelines.items()
                  for rank in range(timeline.num_ranks)) or 1.0
    for axes, (title, timeline) in zip(panels, timelines.items()):
        time_axis(axes, until)
        _draw_boxes(axes, boxes(timeline), until)
        _draw_memory(axes, timeline, each[title], highest, in_bytes if as_bytes else "{:g}".format)
        if len(timeline.messages) <= MOST_ARROWS:
            _draw_arrows(axes, timeline)
        said = _measures(timeline) if fault is None else fill(fault.sentence, 110)
        if fault is not None:
            _draw_fault(axes, timeline, fault)
        axes.set_title(f"{title}\n{said}" if title else said, loc="left", fontsize=11,
                       color=RED if fault else BLACK)
        names = [timeline.name(rank) for rank in range(timeline.num_ranks)]
        name_lanes(axes, names, TOP + HEIGHT / 2)
    _write_legend(figure, list(timelines.values()), as_bytes)
    return figure


def _measures(timeline: Timeline) -> str:
    """Makespan and bubble, in words."""
    unit, scale = time_unit(timeline.makespan())
    share = bubble(timeline)
    return (f"makespan {timeline.makespan() * scale:.4g} {unit}, bubble {share.of_total:.1%} of "
            f"the total, {share.of_ideal:.1%} of the ideal")


def color_of(kind: str, nth: int) -> tuple[float, ...]:
    """The kind's colour, lighter for a rank's second stage, and lighter still for a third."""
    share = 1 - 0.75 ** nth
    return tuple(c + (1 - c) * share for c in to_rgb(COLORS[kind]))


def _draw_boxes(axes: Axes, drawn: Sequence[Box], until: float) -> None:
    """Draw the boxes of each rank, kind and stage; numbers where there is room."""
    inch = until / (0.85 * WIDTH)
    longest = max((box.end - box.start for box in drawn if box.kind != IDLE), default=0.0)
    edge = {"edgecolor": "white", "linewidth": 0.6 if longest > EDGED * inch else 0}
    looks = {(box.kind, box.nth): NOTHING if box.kind == IDLE
             else {"facecolor": color_of(box.kind, box.nth), **edge} for box in drawn}
    fill_lanes(axes, [(b.rank, (b.kind, b.nth), b.start, b.end) for b in drawn], looks,
               dict.fromkeys(looks, (TOP, HEIGHT)))
    for box in drawn:
        text = str(box.microbatch)
        if box.kind != IDLE and box.end - box.start > DIGIT * len(text) * inch:
            axes.text((box.start + box.end) / 2, box.rank + TOP + HEIGHT / 2, text, fontsize=8,
                      ha="center", va="center_baseline", clip_on=True,
                      color="white" if box.kind in "FB" and not box.nth else BLACK)


def _draw_memory(axes: Axes, timeline: Timeline, each: float | Sequence[float], highest: float,
                 write: Callable[[float], str]) -> None:
    """Draw each rank's memory as steps under its boxes, on one scale; its peak at the right."""
    first = timeline.first()
    for rank in range(timeline.num_ranks):
        steps = [*memory(timeline, rank, each), (first + timeline.makespan(), 0)]
        levels = [rank + FLOOR - ROOM * amount / highest for _, amount in steps]
        axes.fill_between([time - first for time, _ in steps], levels, rank + FLOOR, step="post",
                          color=IN_MEMORY, alpha=0.45, linewidth=0)
        if timeline.num_ranks <= 32:
            axes.annotate(f"peak {write(peak_memory(timeline, rank, each))}",
                          (1.005, rank + FLOOR - ROOM / 2), xycoords=("axes fraction", "data"),
                          va="center", fontsize=9, color=BLACK)


def _draw_arrows(axes: Axes, timeline: Timeline) -> None:
    """Draw each message from the sender's box to the receiver's, behind the boxes between."""
    first = timeline.first()
    for message in timeline.messages:
        down = message.dest > message.source
        leave, reach = (TOP + HEIGHT, TOP) if down else (TOP, TOP + HEIGHT)
        arrow(axes, (message.start - first, message.source + leave),
              (message.end - first, message.dest + reach), zorder=0.5, linewidth=0.6,
              mutation_scale=5)


def _draw_fault(axes: Axes, timeline: Timeline, fault: Fault) -> None:
    """Draw a red frame at each place of the fault; a missing action goes at the row's end."""
    length = min((i.end - i.start for i in timeline.intervals), default=1.0)
    for number, (rank, position) in enumerate([(fault.rank, fault.position), *fault.others]):
        row = timeline.row(rank)
        if position < len(row):
            start, end = row[position].start, row[position].end
        else:
            start = row[-1].end if row else timeline.first()
            start += (position - len(row)) * length
            end = start + length
        left = start - timeline.first()
        axes.add_patch(Rectangle((left, rank + TOP), end - start, HEIGHT, facecolor="none",
                                 edgecolor=RED, linewidth=2.5, gid="fault", zorder=5,
                                 clip_on=False, linestyle="--" if number else "-"))
        if not number:
            axes.text(left + (end - start) / 2, rank + TOP + HEIGHT / 2, str(fault.action),
                      color=RED, ha="center", va="center_baseline", fontsize=9, fontweight="bold",
                      zorder=6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        axes.set_xlim(right=max(axes.get_xlim()[1], left + end - start))


def _write_legend(figure: Figure, timelines: Sequence[Timeline], as_bytes: bool) -> None:
    drawn = {(box.kind, box.nth) for timeline in timelines for box in boxes(timeline)}
    kinds = [kind for kind in WORDS if (kind, 0) in drawn]
    handles: list = [Patch(label=WORDS[kind], **(NOTHING if kind == IDLE else
                                                 {"facecolor": COLORS[kind]})) for kind in kinds]
    if any(nth for _, nth in drawn):
        handles.append(Patch(facecolor=color_of("F", 1), label="lighter: later stages of the rank"))
    handles.append(Patch(facecolor=IN_MEMORY, alpha=0.45, label="activations in memory"
                         if as_bytes else "microbatches in flight"))
    if any(0 < len(timeline.messages) <= MOST_ARROWS for timeline in timelines):
        handles.append(Line2D([], [], color=DARK, linewidth=0.8, marker=">", markersize=4,
                              label="message"))
    legend_below(figure, handles, 7)
