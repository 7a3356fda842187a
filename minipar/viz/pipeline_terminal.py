"""A pipeline's timeline as text, for a terminal.

    rank 0 0─1─2─3─············0═══4─1═══5─2═══6─3═══7─4═══··5═══··6═══··7═══
    rank 1 ··0─1─2─········0═══3─1═══4─2═══5─3═══6─4═══7─5═══··6═══··7═══····
                                 ─ forward  ═ backward  · idle  digits: microbatches

Where actions are shorter than a column, a character shows the kind with most of the column's time,
without digits.
"""

from math import ceil

import numpy as np
from rich.text import Text

from ..parallel.pipeline.schedule.metrics import peak_memory
from ..parallel.pipeline.schedule.timeline import Timeline
from .colors import DARK
from .pipeline import COLORS, IDLE, WORDS, Box, boxes
from .timeline_terminal import COLUMNS, NARROWEST, axis

MARKS = {kind: (mark, COLORS[kind]) for kind, mark in zip("FBIW", "─═≈~")} | {IDLE: ("·", DARK)}
PEAK = " peak "         # right of each row: most microbatches in flight


def pipeline_in_terminal(timeline: Timeline, width: int = 100, max_rows: int = 64) -> Text:
    """The timeline, at most `width` characters wide: print it with rich, or str() it.

    With more ranks than rows, every second, third … rank is shown.  Raises ValueError for a
    timeline without actions, or if `width` leaves no room.
    """
    if not timeline.intervals:
        raise ValueError("nothing was done: a timeline needs at least one action to be drawn")
    shown = range(0, timeline.num_ranks, ceil(timeline.num_ranks / max_rows))
    names = [timeline.name(rank) for rank in shown]
    peaks = [f"{PEAK}{peak_memory(timeline, rank):g}" for rank in shown]
    margin = max(map(len, names)) + 1
    room = width - margin - max(map(len, peaks))
    if width < NARROWEST or room < COLUMNS:
        least = max(NARROWEST, width - room + COLUMNS)
        raise ValueError(f"a width of {width} characters leaves no room for a timeline: give at "
                         f"least {least}")
    drawn = boxes(timeline)
    room = _fit(room, timeline)
    scale = room / timeline.makespan() if timeline.makespan() else 0.0
    text = Text(no_wrap=True)
    pieces = _numbered if _shortest(timeline) * scale >= 0.999 else _crowded
    for rank, name, peak in zip(shown, names, peaks):
        text.append(f"{name:<{margin}}")
        for kind, piece in pieces([box for box in drawn if box.rank == rank], scale, room):
            text.append(piece, MARKS[kind][1])
        text.append(f"{peak}\n")
    text.append(" " * margin + axis(timeline.makespan(), room) + "\n")
    for kind in (kind for kind in MARKS if any(box.kind == kind for box in drawn)):
        mark, color = MARKS[kind]
        text.append(mark, color)
        text.append(f" {WORDS[kind].partition(' (')[0]}  ")
    if pieces is _numbered:
        text.append("digits: microbatches")
    return text


def _numbered(row: list[Box], scale: float, room: int) -> list[tuple[str, str]]:
    """(kind, text) of each box in its columns: marks, after the microbatch where there is room."""
    found = []
    for box in row:
        length = round(box.end * scale) - round(box.start * scale)
        number = "" if box.kind == IDLE else str(box.microbatch)
        number = number if len(number) <= length else ""
        found.append((box.kind, number + MARKS[box.kind][0] * (length - len(number))))
    return found


def _crowded(row: list[Box], scale: float, room: int) -> list[tuple[str, str]]:
    """(kind, mark) of each column: the kind that has most of its time."""
    spent = {kind: np.zeros(room) for kind in MARKS}        # in columns
    for box in row:
        start, end = box.start * scale, min(box.end * scale, room)
        for column in range(int(start), ceil(end)):
            spent[box.kind][column] += min(end, column + 1) - max(start, column)
    most = np.argmax([spent[kind].round(9) for kind in MARKS], axis=0)
    kinds = [list(MARKS)[i] for i in most]
    return [(kind, MARKS[kind][0]) for kind in kinds]


def _shortest(timeline: Timeline) -> float:
    """Seconds of the shortest action that takes time; 0 if none does."""
    return min((i.end - i.start for i in timeline.intervals if i.end > i.start), default=0.0)


def _fit(room: int, timeline: Timeline) -> int:
    """The number of columns; if there is room, actions of equal length get equally many."""
    unit = _shortest(timeline)
    if not unit:
        return room
    lengths = {(i.end - i.start) / unit for i in timeline.intervals}
    lengths.add(timeline.makespan() / unit)
    even = all(abs(length - round(length)) < 1e-6 for length in lengths)
    per_unit = room // round(timeline.makespan() / unit)
    return per_unit * round(timeline.makespan() / unit) if even and per_unit else room
