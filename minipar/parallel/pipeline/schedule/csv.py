"""Schedules as text: a line for each rank, a cell for each action, 2F0, as PyTorch writes them.

    0F0,0F1,0B0,0B1         Empty cells stand for idle time and are ignored: the dependencies say
    ,1F0,1B0,1F1,1B1        when an action starts.  Two that go together are a cell: 0F3+1B1.

Kinds are F, B, I and W; `from_csv` reads what `to_csv` writes.
"""

import re
from reprlib import repr as shortened

from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule, Together
from .dependencies import cells

CELL = re.compile(f"([0-9]{{1,9}})([{FORWARD}{BACKWARD}{INPUT}{WEIGHT}])([0-9]{{1,9}})")
BLANK = ' \t"'          # around a cell


def to_csv(schedule: Schedule) -> str:
    """The schedule as text, one line a rank."""
    return "".join(",".join("+".join(map(str, cell)) for cell in cells(row)) + "\n"
                   for row in schedule)


def from_csv(text: str) -> Schedule:
    """The schedule that the text describes.

    Reads what spreadsheets save: a byte-order mark, quotes, any line ends.  Raises ValueError, with
    line and column, for a cell that is no action, and for a table without actions.
    """
    lines = text.removeprefix("\ufeff").strip("\r\n").splitlines()
    schedule = [[action for x, cell in enumerate(line.split(","), 1) if cell.strip(BLANK)
                 for action in parse_cell(cell.strip(BLANK), f"line {y}, column {x}: ")]
                for y, line in enumerate(lines, 1)]
    if not any(schedule):
        raise ValueError("the table has no actions: give a line for each rank, like 0F0,0F1,0B0")
    return schedule


def parse_cell(cell: str, where: str) -> list[Action]:
    """The action of a cell, or the two that go together."""
    first, plus, second = cell.partition("+")
    if not plus:
        return [parse(cell, where)]
    return [Together(*parse(first, where)), parse(second, where)]


def parse(cell: str, where: str = "") -> Action:
    """The action that prints as `cell`.  Raises ValueError, beginning with `where`."""
    found = CELL.fullmatch(cell)
    if not found:
        raise ValueError(f"{where}{shortened(cell)} is no action: write stage, kind (F, B, I or W) "
                         "and microbatch, like 2F0, or leave the cell empty")
    return Action(found[2], int(found[1]), int(found[3]))
