"""Timelines as text, for a terminal: of a trace, and of a pipeline.

    rank 0 ██████╞══════════·····╞═════
    rank 1 ███████████╞═════·····╞═════        █ computing  ═ a message under way  · blocked
           0 µs     2 µs     4 µs

    rank 0 0─1─2─3─············0═══4─1═══5─2═══6─3═══7─4═══··5═══··6═══··7═══ peak 4
    rank 1 ··0─1─2─········0═══3─1═══4─2═══5─3═══6─4═══7─5═══··6═══··7═══···· peak 3
                                 ─ forward  ═ backward  · idle  digits: microbatches

Time is cut into as many columns as there is room for.  A character is the state that takes most of
its column's time, ╞ where a message starts.  If a trace has more ranks than rows, neighbours
share a row.  If a pipeline's actions are shorter than a column, there are no digits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

import numpy as np
from rich.text import Text

from ...comm.trace import Trace
from ...parallel.pipeline.schedule.metrics import peak_memory
from ...parallel.pipeline.schedule.timeline import Timeline
from ...units import time_unit
from ..colors import BLUE, DARK, PURPLE, RED
from .bars import BLOCKED, COMPUTING, TRANSFER, count_ranks, earlier, refuse_empty, states
from .pipeline import COLORS, IDLE, WORDS, Box, boxes

ENDED = "after its last event"
MARKS = {COMPUTING: ("█", BLUE), TRANSFER: ("═", PURPLE), BLOCKED: ("·", RED), ENDED: (" ", "")}
ACTIONS = {kind: (mark, COLORS[kind]) for kind, mark in zip("FBIW", "─═≈~")} | {IDLE: ("·", DARK)}
START = "╞"         # of a message
NARROWEST, COLUMNS = 30, 10     # least width in characters, and what of it is left for the time
Span = tuple[str, float, float]     # a kind, from a column to a column


def timeline_in_terminal(trace: Trace, width: int = 100, num_ranks: int | None = None,
                         max_rows: int = 32) -> Text:
    """The timeline of `trace`, at most `width` characters wide: print it with rich, or str() it.

    `num_ranks` adds ranks that did nothing.  Raises ValueError for an empty trace, or if `width`
    leaves no room.
    """
    refuse_empty(trace)
    groups = share_rows(count_ranks(trace, num_ranks), max_rows)
    names = [f"rank {g[0]}" if len(g) == 1 else f"ranks {g[0]}–{g[-1]}" for g in groups]
    margin, room = _margins(names, width)
    text = Text(no_wrap=True)
    rows = cells(trace, groups, room)
    starts = starts_of_messages(trace, groups, room)
    for name, row, starting in zip(names, rows, starts):
        text.append(f"{name:<{margin}}")
        for i, state in enumerate(row):
            mark, color = MARKS[state]
            text.append(START if i in starting and state == TRANSFER else mark, color)
        text.append("\n")
    text.append(" " * margin + axis(trace.duration(), room) + "\n")
    marks = {**MARKS, TRANSFER: (START * any(starts) + MARKS[TRANSFER][0], PURPLE)}
    _explain(text, [(*marks[state], state) for state in marks
                    if state != ENDED and any(state in row for row in rows)], width)
    return text


def pipeline_in_terminal(timeline: Timeline, width: int = 100, max_rows: int = 64) -> Text:
    """The timeline, at most `width` characters wide: print it with rich, or str() it.

    At the right of each row is the most microbatches in flight.  With more ranks than rows, every
    second, third … rank is shown.  Raises ValueError for a timeline without actions, or if `width`
    leaves no room.
    """
    if not timeline.intervals:
        raise ValueError("nothing was done: a timeline needs at least one action to be drawn")
    shown = range(0, timeline.num_ranks, ceil(timeline.num_ranks / max_rows))
    names = [timeline.name(rank) for rank in shown]
    peaks = [f" peak {peak_memory(timeline, rank):g}" for rank in shown]
    margin, room = _margins(names, width, max(map(len, peaks)))
    drawn = boxes(timeline)
    shortest = min((i.end - i.start for i in timeline.intervals if i.end > i.start), default=0.0)
    room = _fit(room, timeline, shortest)
    scale = room / timeline.makespan() if timeline.makespan() else 0.0
    text = Text(no_wrap=True)
    has_digits = shortest * scale >= 0.999
    for rank, name, peak in zip(shown, names, peaks):
        row = [box for box in drawn if box.rank == rank]
        text.append(f"{name:<{margin}}")
        if has_digits:
            for box in row:
                text.append(_numbered(box, scale), ACTIONS[box.kind][1])
        else:
            spans = [(box.kind, box.start * scale, box.end * scale) for box in row]
            for kind in _longest(spans, list(ACTIONS), room):
                text.append(*ACTIONS[kind])
        text.append(f"{peak}\n")
    text.append(" " * margin + axis(timeline.makespan(), room) + "\n")
    kinds = {box.kind for box in drawn}
    _explain(text, [(*ACTIONS[kind], WORDS[kind].partition(" (")[0]) for kind in ACTIONS
                    if kind in kinds] + [("digits:", "", "microbatches")] * has_digits, width)
    return text


def _margins(names: Sequence[str], width: int, right: int = 0) -> tuple[int, int]:
    """Columns of the names, and those that are left for the time beside `right` more."""
    margin = max(map(len, names)) + 1
    least = max(NARROWEST, margin + right + COLUMNS)
    if width < least:
        raise ValueError(f"a width of {width} characters leaves no room for a timeline: give at "
                         f"least {least}")
    return margin, width - margin - right


def _explain(text: Text, marks: Sequence[tuple[str, str, str]], width: int) -> None:
    """Append what each mark means, (mark, colour, words), in as many lines as they need."""
    used = 0
    for mark, color, words in marks:
        gap = "  " if used else ""
        if used + len(f"{gap}{mark} {words}") > width:
            used, gap = 0, "\n"
        text.append(gap)
        text.append(mark, color)
        text.append(f" {words}")
        used += len(f"{gap}{mark} {words}".strip("\n"))


def _longest(spans: Iterable[Span], kinds: Sequence[str], num_columns: int) -> list[str]:
    """The kind that has most of the time of each column; of equal ones the first of `kinds`."""
    spent = {kind: np.zeros(num_columns) for kind in kinds}
    for kind, start, end in spans:
        end = min(end, num_columns)
        for column in range(int(start), ceil(end)):
            spent[kind][column] += min(end, column + 1) - max(start, column)
    most = np.argmax([spent[kind].round(9) for kind in kinds], axis=0)
    return [kinds[i] for i in most]


def share_rows(num_ranks: int, max_rows: int) -> list[range]:
    """The ranks of each row: equally many, but perhaps fewer in the last row."""
    per_row = ceil(num_ranks / max_rows)
    return [range(first, min(first + per_row, num_ranks))
            for first in range(0, num_ranks, per_row)]


def cells(trace: Trace, groups: Sequence[range], num_columns: int) -> list[list[str]]:
    """For each group of ranks, in each column, the state that takes most of their time there.

    If two take as much, it is the one that comes first in `MARKS`.
    """
    duration = trace.duration()
    scale = num_columns / duration if duration else 0.0
    spans, last = defaultdict(list), defaultdict(float)
    for bar in states(earlier(trace, trace.first()), groups[-1][-1] + 1):
        spans[bar.rank].append((bar.kind, bar.start * scale, bar.end * scale))
        last[bar.rank] = max(last[bar.rank], bar.end)
    return [_longest([span for rank in group for span in
                      (*spans[rank], (ENDED, last[rank] * scale, duration * scale))],
                     list(MARKS), num_columns) for group in groups]


def starts_of_messages(trace: Trace, groups: Sequence[range], num_columns: int) -> list[set[int]]:
    """The columns in which a message of each row starts; none for crowded or shared rows."""
    first, duration = trace.first(), trace.duration() or 1.0
    rows = {group[0]: i for i, group in enumerate(groups) if len(group) == 1}
    found: list[set[int]] = [set() for _ in groups]
    for source, dest, *_, start, _ in trace.messages:
        for rank in {source, dest} & rows.keys():
            found[rows[rank]].add(min(int((start - first) / duration * num_columns),
                                      num_columns - 1))
    return [columns if 3 * len(columns) <= num_columns else set() for columns in found]


def _numbered(box: Box, scale: float) -> str:
    """The marks of a box in its columns, after the microbatch where there is room."""
    length = round(box.end * scale) - round(box.start * scale)
    number = "" if box.kind == IDLE else str(box.microbatch)
    number = number if len(number) <= length else ""
    return number + ACTIONS[box.kind][0] * (length - len(number))


def _fit(room: int, timeline: Timeline, unit: float) -> int:
    """The number of columns; if there is room, actions of equal length get equally many."""
    if not unit:
        return room
    lengths = {(i.end - i.start) / unit for i in timeline.intervals}
    lengths.add(timeline.makespan() / unit)
    even = all(abs(length - round(length)) < 1e-6 for length in lengths)
    per_unit = room // round(timeline.makespan() / unit)
    return per_unit * round(timeline.makespan() / unit) if even and per_unit else room


def axis(duration: float, width: int) -> str:
    """A line with round times at their columns, as many as there is room for."""
    unit, scale = time_unit(duration)
    total = duration * scale
    line = f"0 {unit}"
    if not total:
        return line
    step = next(s * 10.0**k for k in range(-3, 30) for s in (1, 2, 5)
                if s * 10.0**k * width / total >= 10)
    for i in range(1, int(total / step) + 1):
        place, label = round(i * step * width / total), f"{i * step:g} {unit}"
        if place + len(label) <= width:
            line = line.ljust(place) + label
    return line
