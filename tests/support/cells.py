"""The cells of the composition matrix, which are tests.

    Proven(check)               check(world) passes
    Refused(check, sentence)    check(world) raises an error that says the sentence
    no cell                     not tried: nothing is promised
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.cases import Case, check

Check = Callable[[Any], None]


class Proven(NamedTuple):
    """`check(world)` passes.  `slow` marks a cell whose neighbour shows nearly the same."""

    check: Check
    slow: bool = False


class Refused(NamedTuple):
    """`check(world)` raises an error with these words."""

    check: Check
    sentence: str
    slow: bool = False


class Matrix(NamedTuple):
    """`cells[row, column]`; `rows` and `columns` say what each name means."""

    title: str
    rows: dict[str, str]
    columns: dict[str, str]
    cells: dict[tuple[str, str], Proven | Refused]

    @property
    def is_full(self) -> bool:
        """True if no cell is slow.  Then the tests choose the quick ones: a cover of the proven."""
        return not any(cell.slow for cell in self.cells.values())


def no_sync_check(name: str, model: str = "mlp") -> Check:
    """Microbatches inside no_sync, the last one outside, are the one big batch."""
    return lambda world: check(world, name, Case(model, parts=(5, 5)), inside_no_sync=True)


def training_check(name: str, case: Case) -> Check:
    """The run equals the one of a single process."""
    return lambda world: check(world, name, case)
