"""The plugin under mpirun, started by hand."""


import subprocess
import sys
from pathlib import Path

from minipar import environment
from tests.support.sandbox import Sandbox, closing_lines, counts, needs_mpi, section

ROOT = Path(__file__).parents[2]


@needs_mpi
def test_by_hand_rank_0_reports_for_all(tmp_path):
    sandbox = Sandbox(tmp_path, """
def test_serial():
    note("serial")

@two
def test_together():
    note("together")
    assert world().allreduce(1) == 2

def test_serial_between():
    note("serial")

@three
def test_needs_more():
    note("more")

@two
def test_again():
    assert world().allreduce(1) == 2

def test_serial_last():
    note("serial")
""")
    status, output = sandbox.run("--with-mpi", "-rs", ranks=2)
    assert status == 0
    assert counts(output) == {"passed": 5, "skipped": 1}
    assert output.count("test session starts") == 1
    assert len(sandbox.lines("serial")) == 3 and len(sandbox.lines("together")) == 2
    assert "needs 3 ranks and this run has 2: mpirun -n 3 python -m pytest" in output
    assert sandbox.lines("more") == [] and sandbox.leftovers() == []


@needs_mpi
def test_by_hand_the_tests_of_this_project_run_on_two_ranks():
    """docs/pages/running.md says so."""
    command = ("-m", "pytest", "--with-mpi", "-m", "mpi", "-rs", "-p", "no:cacheprovider",
               "-p", "no:hypothesispytest", "-p", "no:anyio",
               "--color=no")         # the terminal that Open MPI gives its ranks has colours
    variables = {name: value for name, value in environment.mpirun_environment().items()
                 if name not in ("PYTEST_ADDOPTS", "CI")} | {"COLUMNS": "150"}
    done = subprocess.run(
        [environment.find_mpirun(), "-n", "2", sys.executable, *command,
         "tests/comm/mpi_ranks/test_shared_memory.py", "tests/comm/simulated/test_replay.py"],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = counts(done.stdout)
    assert counted["passed"] >= 10 and set(counted) <= {"passed", "skipped", "deselected"}
    assert "ranks and this run has 2: mpirun -n" in done.stdout


@needs_mpi
def test_by_hand_stuck_ranks_end_the_run(tmp_path):
    sandbox = Sandbox(tmp_path, """
@two
def test_passes():
    pass

@two
def test_peers_wait():
    if world().rank == 1:
        raise ValueError("left the other alone")
    world().barrier()

@two
def test_later():
    pass
""")
    status, output = sandbox.run("--only-mpi", ranks=2)
    assert status != 0
    assert counts(output) == {"passed": 1, "failed": 1}
    text = section(output, "test_peers_wait")
    assert text.startswith("rank 1 of 2 failed; rank 0 still waited 0.5 s later")
    assert "rank 0 still waits here" in text and "world().barrier()" in text
    assert "1 tests did not run" in output
    assert sandbox.leftovers() == []


@needs_mpi
def test_by_hand_a_failure_on_rank_0_alone_stops_all(tmp_path):
    sandbox = Sandbox(tmp_path, """
def test_serial_fails():
    assert False

@two
def test_together():
    note("together")
""")
    status, output = sandbox.run("--with-mpi", "-x", ranks=2)
    assert status != 0
    assert counts(output) == {"failed": 1}
    assert sandbox.lines("together") == []


@needs_mpi
def test_by_hand_ranks_with_different_tests_do_not_start(tmp_path):
    status, output = Sandbox(tmp_path, """
@two
@pytest.mark.parametrize("number", [os.getpid()])
def test_number(number):
    note("ran")
""").run("--only-mpi", ranks=2)
    assert status != 0
    assert "rank 1 collected other tests, or in another order, than rank 0" in output
    assert len(closing_lines(output)) == 1
