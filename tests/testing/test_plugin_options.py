"""The plugin under plain pytest: options, no MPI, Ctrl-C."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from minipar import environment
from minipar.testing.status_board import wait_until
from tests.support.sandbox import PYTEST, Sandbox, counts, needs_mpi, section

FEW = """
@two
def test_fails():
    assert world().rank != 0

@two
def test_passes():
    pass

def test_serial():
    pass
"""


@needs_mpi
def test_exitfirst_ends_the_job(tmp_path):
    sandbox = Sandbox(tmp_path, FEW)
    status, output = sandbox.run("-x")
    assert status == 1
    assert counts(output) == {"failed": 1, "passed": 1}
    assert sandbox.leftovers() == []


@needs_mpi
def test_only_selected_tests_run(tmp_path):
    status, output = Sandbox(tmp_path, FEW).run("-k", "passes")
    assert status == 0
    assert counts(output) == {"passed": 1, "deselected": 2}


MANY = """
@two
def test_on_many():
    note("sizes", world().size)

@pytest.mark.mpi(min_size=1)
def test_on_few():
    note("sizes", world().size)
"""


@needs_mpi
@pytest.mark.parametrize("options", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)])
def test_tests_on_many_ranks_have_a_job_of_their_own_after_the_others(tmp_path, options):
    from_two_on = "import minipar.testing.mpi_reports as m\nm.DEFAULT_RANKS = 1\n"
    sandbox = Sandbox(tmp_path, MANY, from_two_on)
    status, output = sandbox.run(*options)
    assert status == 0, output
    assert counts(output) == {"passed": 2}
    assert sandbox.lines("sizes") == ["1", "2", "2"]
    assert sandbox.leftovers() == []


BOGUS = """
from minipar import environment
environment.find_mpirun = lambda: {mpirun!r}
"""


@needs_mpi
def test_a_job_that_cannot_start_is_not_tried_again(tmp_path):
    status, output = Sandbox(tmp_path, FEW, BOGUS.format(mpirun="false")).run()
    assert status == 1
    assert counts(output) == {"failed": 2, "passed": 1}
    assert "ended (exit status 1) before this test ran" in section(output, "test_fails")
    assert "not run: no job could be started" in section(output, "test_passes")


def test_collecting_starts_no_job(tmp_path):
    status, output = Sandbox(tmp_path, FEW, BOGUS.format(mpirun="/no/such/file")).run(
        "--collect-only", "-q")
    assert status == 0
    assert "test_it.py::test_passes" in output


NO_MPI4PY = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "mpi4py" else find_spec(name)
"""


@pytest.mark.parametrize("conftest, missing", [
    (NO_MPI4PY, "mpi4py is not installed"),
    (BOGUS.format(mpirun=None), "there is no mpirun here"),
], ids=["mpi4py", "mpirun"])
def test_without_mpi_tests_are_skipped_and_counted(tmp_path, conftest, missing):
    if missing.startswith("there") and not environment.find_mpirun():
        conftest = ""
    status, output = Sandbox(tmp_path, FEW, conftest).run("-rs")
    assert status == 0
    assert counts(output) == {"passed": 1, "skipped": 2}
    get_it = "get it with `make setup`, or pip install '.[mpi]'"
    assert f"2 tests on real ranks did not run: {missing}" in output
    assert re.search(rf"SKIPPED .*: needs real ranks, and {missing}.*; {re.escape(get_it)}", output)


SLOW = """
@two
def test_sleeps():
    world().barrier()
    maps = Path("/proc/self/maps")
    if maps.exists() and world().rank == 0:
        for line in maps.read_text().splitlines():
            if "mpich_shm_" in line:
                note("segments", line.split()[-1])
    note("pids", os.getpid())
    world().recv(source=1 - world().rank)
"""


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@needs_mpi
def test_ctrl_c_ends_the_whole_job(tmp_path):
    sandbox = Sandbox(tmp_path, SLOW)
    sandbox.environment["MINIPAR_TEST_TIMEOUT"] = "30"
    process = sandbox.start(*PYTEST)
    deadline = time.monotonic() + 20
    while len(sandbox.lines("pids")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=15)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert len(sandbox.lines("pids")) == 2
    for pid in sandbox.lines("pids"):       # an orphan stays until the system has noted its end
        assert wait_until(lambda pid=int(pid): has_ended(pid), 5)
    assert [path for path in sandbox.lines("segments") if Path(path).exists()] == []
    assert sandbox.leftovers() == []
