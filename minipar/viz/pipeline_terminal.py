"""A pipeline's timeline as text, for a terminal.

    rank 0 0─1─2─3─············0═══4─1═══5─2═══6─3═══7─4═══··5═══··6═══··7═══
    rank 1 ··0─1─2─········0═══3─1═══4─2═══5─3═══6─4═══7─5═══··6═══··7═══····
                                 ─ forward  ═ backward  · idle; digits: microbatches
"""

from math import ceil

from rich.text import Text

from ..parallel.pipeline import Timeline
from ..parallel.pipeline.figures import peak_memory
from .colors import BLUE, DARK, GREEN, ORANGE, VERMILION
from .pipeline import IDLE, WORDS, boxes
from .terminal import COLUMNS, NARROWEST, axis

MARKS = {"F": ("─", BLUE), "B": ("═", VERMILION), "I": ("≈", ORANGE), "W": ("~", GREEN),
         IDLE: ("·", DARK)}
PEAK = " peak "         # right of each row: most microbatches in flight


def pipeline_in_terminal(timeline: Timeline, width: int = 100, max_rows: int = 64) -> Text:
    """The timeline, at most `width` characters wide: print it with rich, or str() it.

    Where ranks are more than rows, every second, third … one is shown.  Raises ValueError for a
    timeline without actions, or if `width` leaves no room.
    """
    if not timeline.intervals:
        raise ValueError("nothing was done: a timeline needs at least one action to be drawn")
    shown = range(0, timeline.num_ranks, ceil(timeline.num_ranks / max_rows))
    names = [f"rank {rank}" for rank in shown]
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
    for rank, name, peak in zip(shown, names, peaks):
        text.append(f"{name:<{margin}}")
        for box in drawn:
            length = round(box.end * scale) - round(box.start * scale)
            if box.rank == rank and length:
                mark, color = MARKS[box.kind]
                number = "" if box.kind == IDLE else str(box.microbatch)
                number = number if len(number) <= length else ""
                text.append(number + mark * (length - len(number)), color)
        text.append(f"{peak}\n")
    text.append(" " * margin + axis(timeline.makespan(), room) + "\n")
    for kind in (kind for kind in MARKS if any(box.kind == kind for box in drawn)):
        mark, color = MARKS[kind]
        text.append(mark, color)
        text.append(f" {WORDS[kind].partition(' (')[0]}  ")
    text.append("digits: microbatches")
    return text


def _fit(room: int, timeline: Timeline) -> int:
    """As many columns as give actions that take equally long equally many, if there is room."""
    unit = min(i.end - i.start for i in timeline.intervals)
    if not unit:
        return room
    lengths = {(i.end - i.start) / unit for i in timeline.intervals}
    lengths.add(timeline.makespan() / unit)
    even = all(abs(length - round(length)) < 1e-6 for length in lengths)
    per_unit = room // round(timeline.makespan() / unit)
    return per_unit * round(timeline.makespan() / unit) if even and per_unit else room
