"""The timeline as text, for a terminal.

    rank 0 ██████╞══════════·····╞═════
    rank 1 ███████████╞═════·····╞═════        █ computing  ═ a message under way  · blocked
           0 µs     2 µs     4 µs

Time is cut into as many columns as there is room for.  A character is the state (see
`space_time.states`) that takes most of its column's time, ╞ where a message starts.  Where ranks
are more than rows, neighbours share one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil

import numpy as np
from rich.text import Text

from ..comm.trace import Trace
from ..units import time_unit
from .bars import count_ranks, refuse_empty
from .colors import BLUE, PURPLE, RED
from .space_time import BLOCKED, COMPUTING, TRANSFER, TracedRun, from_zero, states

ENDED = "after its last event"
MARKS = {COMPUTING: ("█", BLUE), TRANSFER: ("═", PURPLE), BLOCKED: ("·", RED), ENDED: (" ", "")}
START = "╞"         # of a message
NARROWEST, COLUMNS = 30, 10     # least width in characters, and what of it is left for the time


def timeline_in_terminal(trace: Trace, width: int = 100, num_ranks: int | None = None,
                     max_rows: int = 32) -> Text:
    """The timeline of `trace`, at most `width` characters wide: print it with rich, or str() it.

    `num_ranks` adds ranks that did nothing.  Raises ValueError for an empty trace, or if `width`
    leaves no room.
    """
    refuse_empty(trace)
    num_ranks = count_ranks(trace, num_ranks)
    groups = share_rows(num_ranks, max_rows)
    names = [f"rank {g[0]}" if len(g) == 1 else f"ranks {g[0]}–{g[-1]}" for g in groups]
    margin = max(map(len, names)) + 1
    if width < max(NARROWEST, margin + COLUMNS):
        raise ValueError(f"a width of {width} characters leaves no room for a timeline: give at "
                         f"least {max(NARROWEST, margin + COLUMNS)}")
    text = Text(no_wrap=True)
    rows = cells(trace, groups, width - margin)
    starts = starts_of_messages(trace, groups, width - margin)
    for name, row, starting in zip(names, rows, starts):
        text.append(f"{name:<{margin}}")
        for i, state in enumerate(row):
            mark, color = MARKS[state]
            text.append(START if i in starting and state == TRANSFER else mark, color)
        text.append("\n")
    text.append(" " * margin + axis(trace.duration(), width - margin) + "\n")
    used = 0
    for state in (s for s in MARKS if s != ENDED and any(s in row for row in rows)):
        mark, color = MARKS[state]
        mark = START + mark if state == TRANSFER and any(starts) else mark
        gap = "  " if used else ""
        if used + len(gap + mark + state) + 1 > width:
            used, gap = 0, "\n"
        text.append(gap)
        text.append(mark, color)
        text.append(f" {state}")
        used += len(gap.strip("\n") + mark + state) + 1
    return text


def share_rows(num_ranks: int, max_rows: int) -> list[range]:
    """The ranks of each row: as many in each, the last one's apart."""
    per_row = ceil(num_ranks / max_rows)
    return [range(first, min(first + per_row, num_ranks))
            for first in range(0, num_ranks, per_row)]


def cells(trace: Trace, groups: Sequence[range], num_columns: int) -> list[list[str]]:
    """For each group of ranks, in each column, the state that takes most of their time there.

    Of two that take as much it is the one that comes first in `MARKS`.
    """
    trace = from_zero(TracedRun("", trace)).trace
    duration, num_ranks = trace.duration(), groups[-1][-1] + 1
    spent = {state: np.zeros((len(groups), num_columns)) for state in MARKS}    # in columns
    scale = num_columns / duration if duration else 0.0
    last = [0.0] * num_ranks
    firsts = [group[0] for group in groups]

    def spend(rank: int, state: str, start: float, end: float) -> None:
        row = spent[state][bisect_right(firsts, rank) - 1]
        start, end = start * scale, min(end * scale, num_columns)
        for column in range(int(start), ceil(end)):
            row[column] += min(end, column + 1) - max(start, column)

    for bar in states(trace, num_ranks):
        spend(bar.rank, bar.kind, bar.start, bar.end)
        last[bar.rank] = max(last[bar.rank], bar.end)
    for rank, end in enumerate(last):
        spend(rank, ENDED, end, duration)
    most = np.argmax([spent[state].round(9) for state in MARKS], axis=0)
    return [[list(MARKS)[i] for i in row] for row in most]


def starts_of_messages(trace: Trace, groups: Sequence[range], num_columns: int) -> list[set[int]]:
    """The columns in which a message of each row starts; none where there is no room to tell."""
    first, duration = trace.first(), trace.duration() or 1.0
    rows = {group[0]: i for i, group in enumerate(groups) if len(group) == 1}
    found: list[set[int]] = [set() for _ in groups]
    for source, dest, *_, start, _ in trace.messages:
        for rank in {source, dest} & rows.keys():
            found[rows[rank]].add(min(int((start - first) / duration * num_columns),
                                      num_columns - 1))
    return [columns if 3 * len(columns) <= num_columns else set() for columns in found]


def axis(duration: float, width: int) -> str:
    """Round times at their columns, as many as there is room for."""
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
