"""The table of print_table.py is all right, and it would say so if it were not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import cost
from minipar.comm.algorithms import ALGORITHMS
from minipar.environment import find_mpirun, mpirun_environment
from tests.support import print_table
from tests.support.operation_table import ALL, NAMES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)
@pytest.mark.one_in(4)
def test_on_simulated_ranks(operation, algorithm):
    for p in (1, 3, 8):
        assert print_table.simulated_cell(operation, algorithm, p).is_right


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)
def test_on_up_to_33_simulated_ranks(operation, algorithm):
    for p in (*range(1, 18), 24, 31, 32, 33):
        assert print_table.simulated_cell(operation, algorithm, p).is_right


@pytest.mark.slow
@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
@pytest.mark.parametrize("p", range(1, 9))
def test_on_real_ranks(p):
    done = subprocess.run([find_mpirun(), "-n", str(p), sys.executable, print_table.__file__],
                          env=mpirun_environment() | {"PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    num_rows = len(ALL) + len(ALGORITHMS)
    assert f"{num_rows} algorithms, {num_rows} cells, {num_rows} right" in done.stdout


def test_a_wrong_algorithm_is_found(monkeypatch, capsys):
    entry = ALGORITHMS["all_reduce"]["ring"]
    ring = entry.run

    def run(wrong) -> print_table.Cell:
        monkeypatch.setitem(ALGORITHMS["all_reduce"], "ring", entry._replace(run=wrong))
        return print_table.simulated_cell("all_reduce", "ring", 3)

    def off_by_one(comm, flat, op):
        ring(comm, flat, op)
        flat += 1

    def rounds_off(comm, flat, op):
        ring(comm, flat, op)
        if flat.dtype.kind == "f":
            flat *= 1 + 1e-5

    def chatty(comm, flat, op):
        ring(comm, flat, op)
        comm.sendrecv(np.zeros(1), (comm.rank + 1) % 3, np.zeros(1), (comm.rank - 1) % 3)

    assert run(off_by_one)[:2] == (False, False)
    assert run(rounds_off) == (True, False, True)
    assert run(chatty) == (True, True, False)
    cells = {("all_reduce", "ring"): [run(ring), run(chatty)]}
    assert not print_table.show(cells, "3")
    assert "1/2   WRONG" in capsys.readouterr().out


def test_counting_is_over_when_it_is_over():
    from minipar.comm import arguments
    assert cost.predict("all_reduce", "tree", 2, 1) == print_table.count(
        2, lambda comm: print_table.call("all_reduce", "tree", comm, 1))
    assert arguments.OPERATORS["sum"] is np.add
