"""Every cell of the composition matrix, and the page that shows them."""

import re

import pytest

from minipar.launcher import UsageError
from minipar.testing import worlds
from tests.support.matrix import MATRICES, PAGE, Refused, page

CELLS = [pytest.param(cell, id="-".join((matrix.title, *place)).replace(" ", "_"),
                      marks=[pytest.mark.slow] if cell.slow else [])
         for matrix in MATRICES for place, cell in matrix.cells.items()]


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("cell", CELLS)
def test_cell(world, cell):
    if isinstance(cell, Refused):
        with pytest.raises((ValueError, RuntimeError, UsageError), match=re.escape(cell.sentence)):
            cell.check(world)
    else:
        cell.check(world)


def test_cells_are_of_the_matrix():
    for matrix in MATRICES:
        assert {row for row, _ in matrix.cells} <= {*matrix.rows}
        assert {column for _, column in matrix.cells} <= {*matrix.columns}


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.support.matrix"
