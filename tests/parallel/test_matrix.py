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
from tests.support.sweeps import cover

REFUSALS = ValueError, RuntimeError, UsageError


def cells(on_real_ranks: bool) -> Iterator[Any]:
    """All cells; slow are those that say so.  In a matrix where none does, not slow are what is
    refused and, of proven cells, a cover of rows and columns.  `make test` has a third of these,
    and on real ranks a tenth.  On real ranks `make test-all` has every second cell: simulated ranks
    have them all.
    """
    for matrix in MATRICES:
        quick = [place for place, cell in matrix.cells.items() if not cell.slow]
        if matrix.is_full:
            proven = [place for place in quick if isinstance(matrix.cells[place], Proven)]
            kept = {proven[i] for i in cover(proven)}
            quick = [place for place in quick if place in kept or place not in proven]
        if on_real_ranks:
            quick = quick[::5]
        rows, columns = [*matrix.rows], [*matrix.columns]
        for (row, column), cell in matrix.cells.items():
            place = row, column
            is_white = (rows.index(row) + columns.index(column)) % 2 == 0       # of a chessboard
            if on_real_ranks and not is_white and place not in quick:
                continue
            yield pytest.param(cell, id="-".join((matrix.title, *place)).replace(" ", "_"),
                               marks=[pytest.mark.slow] * (place not in quick))


@worlds(4, mpi=())
@pytest.mark.parametrize("cell", [*cells(on_real_ranks=False)])
@pytest.mark.one_in(3)
def test_cell(world, cell):
    check(world, cell)


@worlds(mpi=(4,))
@pytest.mark.parametrize("cell", [*cells(on_real_ranks=True)])
@pytest.mark.one_in(2)
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
