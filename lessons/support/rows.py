"""Rows of a lesson's tables: predicted beside counted or timed."""

from collections.abc import Sequence
from math import ceil, isclose
from typing import Any, NamedTuple

EQUAL, AT_MOST, ABOUT = "=", "≤", "≈"


class Row(NamedTuple):
    """One line of a table: a predicted value, and the one that was counted or timed.

    `rule` says what is asserted.  "=" is equal (floats to 1e-9), and "≤" says that measured is at
    most predicted.  "≈" asserts nothing: for seconds, and for other values that need not be exact.
    """

    what: str
    predicted: float
    measured: float
    unit: str = ""
    rule: str = EQUAL

    def holds(self) -> bool:
        """Return True if the measured value obeys the rule."""
        if self.rule == EQUAL:
            both_whole = isinstance(self.predicted, int) and isinstance(self.measured, int)
            return (self.predicted == self.measured if both_whole
                    else isclose(self.predicted, self.measured, rel_tol=1e-9))
        return self.rule == ABOUT or self.measured <= self.predicted


def number(value: float) -> str:
    """A number for people: 12,345 if it is whole or large, otherwise with three digits."""
    whole = isinstance(value, int) or abs(value) < 1e15 and (value >= 999.5 or value == int(value))
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def ratio(row: Row) -> str:
    """Measured over predicted, as text."""
    if row.rule == AT_MOST or not row.predicted:
        return "–"
    return "1" if row.predicted == row.measured else f"{row.measured / row.predicted:.4f}"


def as_markdown(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown, the first column left-aligned, the others right-aligned."""
    lines = [list(headers), ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join("| " + " | ".join(_cell(str(cell)) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """The text of a cell in Markdown, which would drop the spaces at its head."""
    indent = len(text) - len(text.lstrip())
    return "&emsp;" * ceil(indent / 2) + text.strip().replace("|", "\\|") or " "
