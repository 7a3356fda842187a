"""Rows that go from rank to rank when a slice is taken of a dimension that stays cut.

    x[2:10] of 16 rows on 4 ranks: rank 2 has rows 8 … 11 and wants 6, 7, which rank 1 has.

Only rows whose rank changes are sent.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Overlap(NamedTuple):
    """Rows start … stop of the whole, which rank `owner` has and rank `taker` wants."""

    owner: int
    taker: int
    start: int
    stop: int


def overlaps(length: int, start: int, stop: int, p: int) -> Iterator[Overlap]:
    """The overlaps of the ranks' pieces of `length` rows with their pieces of rows start … stop.

    Rows that stay on their rank are among them.
    """
    has, wants = -(-length // p), -(-(stop - start) // p)
    for taker in range(p):
        first, last = start + taker * wants, min(stop, start + (taker + 1) * wants)
        for owner in range(p):
            low, high = max(first, owner * has), min(last, (owner + 1) * has)
            if low < high:
                yield Overlap(owner, taker, low, high)


def num_rows_sent(length: int, start: int, stop: int, p: int) -> int:
    """The rows that all ranks send together."""
    return sum(each.stop - each.start for each in overlaps(length, start, stop, p)
               if each.owner != each.taker)
