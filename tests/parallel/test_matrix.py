"""Every cell of the composition matrix, and the page that shows them."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from minipar.launcher import UsageError
from minipar.testing import worlds
from tests.support.cells import Proven
from tests.support.matrix import MATRICES, PAGE, Refused, page

REFUSALS = ValueError, RuntimeError, UsageError


def cells(on_real_ranks: bool) -> Iterator[Any]:
    """All cells; slow are those that say so, and of proven ones every second, or in a matrix where
    none says so all but a quarter.  On real ranks slow are all but a sixth, or a twelfth."""
    for matrix in MATRICES:
        for (row, column), cell in matrix.cells.items():
            diagonal = [*matrix.rows].index(row) + [*matrix.columns].index(column)
            step = (6 if on_real_ranks else 2 if isinstance(cell, Proven) else 1)
            step *= 2 if matrix.is_full and step > 1 else 1
            is_slow = cell.slow or diagonal % step > 0
            yield pytest.param(cell, id="-".join((matrix.title, row, column)).replace(" ", "_"),
                               marks=[pytest.mark.slow] if is_slow else [])


@worlds(4, mpi=())
@pytest.mark.parametrize("cell", [*cells(on_real_ranks=False)])
def test_cell(world, cell):
    check(world, cell)


@worlds(mpi=(4,))
@pytest.mark.parametrize("cell", [*cells(on_real_ranks=True)])
def test_cell_on_real_ranks(world, cell):
    check(world, cell)


def check(world, cell):
    if not isinstance(cell, Refused):
        cell.check(world)
    elif world.has_this_process():
        with pytest.raises(REFUSALS, match=re.escape(cell.sentence)):
            cell.check(world)
    else:
        with suppress(*REFUSALS):       # raised before any body runs, or by the bodies of others
            cell.check(world)


def test_cells_are_of_the_matrix():
    for matrix in MATRICES:
        assert {row for row, _ in matrix.cells} <= {*matrix.rows}
        assert {column for _, column in matrix.cells} <= {*matrix.columns}


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.support.matrix"
