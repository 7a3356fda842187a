"""What the tests of a lesson's algorithm need: lesson_NN.py has its functions and its changed line.

Each module has

    CASES                 each function of the lesson, and its counterpart in the library
    PARTS                 functions that are part of these, or made of them: without counterparts
    check_change(names)   assert the answer to the question that changes a line; `names` is all that
                          the changed script defines
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.lessons.test_answers import says

__all__ = ["SIZES", "Case", "matrix", "numbers", "says", "waits"]
SIZES = (0, 1, 7, 24)


class Case(NamedTuple):
    """A function of a lesson, and how the library does the same."""

    function: str
    own: Callable[..., Any]         # (the function, comm, size, all names of the lesson)
    library: Callable[..., Any]     # (comm, size)
    sizes: tuple[int, ...] = SIZES
    tolerance: float = 0.0


def numbers(comm, size):
    """This rank's numbers, whole, so that every order of adding gives the same sum."""
    return np.random.default_rng(comm.rank).integers(-99, 99, size).astype(float)


def matrix(comm, size):
    """A row of `size` numbers for each rank."""
    return numbers(comm, comm.size * size).reshape(comm.size, size)


def waits(report) -> dict[int, tuple[str, int]]:
    """What each rank waits for, by the report of a deadlock: (send or receive, the peer)."""
    found = re.findall(r"rank (\d+) waits to (send|receive) (?:to|from) rank (\d+)",
                       str(report.value))
    return {int(rank): (what, int(peer)) for rank, what, peer in found}
