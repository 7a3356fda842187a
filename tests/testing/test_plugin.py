"""The pytest plugin, seen from outside: small test files, run by a pytest of their own."""

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from minipar import environment
from minipar.testing import worlds
from minipar.testing.worlds import SimulatedWorld

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")

needs_mpi = pytest.mark.skipif(environment.find_mpirun() is None,
                               reason="there is no mpirun: pip install 'minipar[mpi]'")

CONFTEST = 'pytest_plugins = ["minipar.testing.plugin"]\n'

HEADER = """
import ctypes, os, signal, time
from pathlib import Path
import pytest
here = Path(__file__).parent
two, three = pytest.mark.mpi(min_size=2), pytest.mark.mpi(min_size=3)

def world():
    from mpi4py import MPI
    return MPI.COMM_WORLD

def note(name, text=""):
    with open(here / name, "a") as file:
        file.write(f"{text}\\n")
"""


class Sandbox:
    """A folder with a conftest and a test file, and its own place for temporary files."""

    def __init__(self, folder: Path, tests: str, conftest: str = ""):
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        (folder / "conftest.py").write_text(CONFTEST + conftest)
        (folder / "test_it.py").write_text(HEADER + tests)
        # Also where this test itself runs on a rank, the new pytest must not take itself for one.
        self.environment = environment.mpirun_environment() | {
            "TMPDIR": str(self.temporary), "MINIPAR_TEST_TIMEOUT": "3",
            "MINIPAR_TEST_GRACE": "0.5", "COLUMNS": "150"}
        for name in ("PYTEST_ADDOPTS", "CI"):
            self.environment.pop(name, None)

    def start(self, *command: str) -> subprocess.Popen:
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, *options: str, ranks: int = 0) -> tuple[int, str]:
        """Exit status and output of pytest, started plainly or by mpirun."""
        launcher = (environment.find_mpirun(), "-n", str(ranks)) if ranks else ()
        process = self.start(*launcher, *PYTEST, *options)
        try:
            output, _ = process.communicate(timeout=40)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    def lines(self, name: str) -> list[str]:
        """What the tests noted under this name."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def leftovers(self) -> list[str]:
        return [path.name for path in self.temporary.glob("minipar-*")]


def closing_lines(output: str) -> list[str]:
    return re.findall(r"^=+ (.* in [0-9.]+s.*?) =+$", output, re.MULTILINE)


def counts(output: str) -> dict[str, int]:
    """The closing line as a dictionary; there must be just one."""
    line, = closing_lines(output)
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)
            if word != "s"}


def section(output: str, test: str) -> str:
    """What pytest printed about one failed test."""
    return re.split(r"^_{3,} .* _{3,}$|^={3,} .* ={3,}$",
                    output.split(f"_ {test} _", 1)[1].split("\n", 1)[1], flags=re.MULTILINE)[0]


# ---------------------------------------------------------------- plain pytest, one run for many

EVERY_KIND = """
def test_serial():
    note("serial", os.getpid())

@three
def test_together():
    assert world().allreduce(world().rank) == 3
    assert os.environ["OMP_NUM_THREADS"] == "1"

@two
def test_needs_less():
    assert world().size == 3

@three
def test_one_rank_fails():
    print("I am rank", world().rank)
    assert world().rank != 1, "not me"

@three
def test_all_ranks_fail():
    assert 1 == 2

@three
def test_ranks_disagree():
    if world().rank == 0:
        pytest.skip("not here")

@three
def test_peers_wait():
    if world().rank == 1:
        raise ValueError("left the others alone")
    world().barrier()

@three
def test_deadlock():
    if world().rank < 2:
        world().recv(source=1 - world().rank)

@three
def test_stuck_in_c():
    if world().rank == 1:
        ctypes.PyDLL(None).sleep(30)        # keeps Python's lock
    assert world().rank != 2, "my peer does not hear"

@three
def test_leaves():
    if world().rank == 2:
        os._exit(3)
    world().barrier()

@three
def test_is_killed():
    if world().rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    world().barrier()

@three
def test_interrupts():
    if world().rank == 1:
        raise KeyboardInterrupt
    world().barrier()

@three
def test_sys_exit():
    if world().rank == 2:
        raise SystemExit(0)

@pytest.fixture
def broken():
    assert world().rank != 2, "no fixture here"

@three
def test_fixture_fails(broken):
    pass

@three
def test_skips():
    pytest.skip("for a reason")

@pytest.mark.xfail
@three
def test_expected_to_fail():
    assert False

@three
def test_after_all_that(record_property):
    record_property("answer", 42)
    note("after", world().rank)

def test_serial_last():
    note("serial", os.getpid())
"""


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    sandbox = Sandbox(tmp_path_factory.mktemp("kinds"), EVERY_KIND)
    sandbox.status, sandbox.output = sandbox.run("-ra", "--junitxml=out.xml")
    return sandbox


@needs_mpi
class TestPlainPytest:
    def test_has_one_closing_line_and_status(self, every_kind):
        assert every_kind.status == 1
        assert counts(every_kind.output) == {
            "passed": 5, "failed": 10, "skipped": 1, "xfailed": 1, "error": 1}

    def test_runs_serial_tests_itself_and_the_others_on_all_ranks(self, every_kind):
        first, last = every_kind.lines("serial")
        assert first == last
        assert sorted(every_kind.lines("after")) == ["0", "1", "2"]

    def test_names_the_rank_that_failed_and_shows_its_traceback_and_output(self, every_kind):
        text = section(every_kind.output, "test_one_rank_fails")
        assert text.startswith("rank 1 of 3 failed: AssertionError: not me")
        assert '>       assert world().rank != 1, "not me"' in text
        assert "Captured stdout call, rank 1" in text and "I am rank 1" in text
        assert "I am rank 0" not in text

    def test_shows_equal_tracebacks_once(self, every_kind):
        text = section(every_kind.output, "test_all_ranks_fail")
        assert text.startswith("ranks 0, 1, 2 of 3 failed: assert 1 == 2")
        assert text.count("E       assert 1 == 2") == 1

    def test_reports_a_failed_fixture_as_an_error(self, every_kind):
        assert "rank 2 of 3 failed: AssertionError: no fixture here" in every_kind.output
        assert "ERROR test_it.py::test_fixture_fails" in every_kind.output

    def test_fails_when_ranks_disagree(self, every_kind):
        assert ("the ranks disagree: rank 0 skipped (not here); ranks 1, 2 passed"
                in section(every_kind.output, "test_ranks_disagree"))

    def test_ends_ranks_that_wait_for_one_that_failed(self, every_kind):
        text = section(every_kind.output, "test_peers_wait")
        assert text.startswith("rank 1 of 3 failed; ranks 0, 2 still waited 0.5 s later")
        assert "ValueError: left the others alone" in text
        assert "ranks 0, 2 still wait here" in text
        assert "in test_peers_wait\n    world().barrier()" in text
        assert "_pytest" not in text and "pluggy" not in text

    def test_ends_a_deadlock(self, every_kind):
        text = section(every_kind.output, "test_deadlock")
        assert text.startswith("ranks 0, 1 of 3 did not finish within 3 s: a deadlock, or too slow")
        assert "world().recv(source=1 - world().rank)" in text
        assert "rank 2 had finished" in text

    def test_ends_ranks_that_cannot_answer(self, every_kind):
        text = section(every_kind.output, "test_stuck_in_c")
        assert text.startswith("rank 2 of 3 failed; rank 1 still waited")
        assert "no answer: it is in C code" in text

    def test_fails_just_the_test_in_which_a_job_dies(self, every_kind):
        for test in ("test_leaves", "test_is_killed"):
            assert re.match(r"the job `mpirun -n 3` ended \(exit status \d+\) while this test ran",
                            section(every_kind.output, test))

    def test_treats_leaving_as_failing(self, every_kind):
        assert "KeyboardInterrupt" in section(every_kind.output, "test_interrupts")
        text = section(every_kind.output, "test_sys_exit")
        assert text.startswith("rank 2 of 3 failed: SystemExit: 0")

    def test_keeps_the_reasons_of_skips(self, every_kind):
        assert re.search(r"SKIPPED \[1\] test_it.py:\d+: for a reason", every_kind.output)
        assert "XFAIL test_it.py::test_expected_to_fail" in every_kind.output

    def test_writes_junit_xml(self, every_kind):
        suite = ElementTree.parse(every_kind.folder / "out.xml").getroot()[0]
        assert (suite.get("tests"), suite.get("failures")) == ("18", "10")
        answer = suite.find("testcase[@name='test_after_all_that']/properties/property")
        assert answer is not None and answer.get("value") == "42"

    def test_leaves_nothing_behind(self, every_kind):
        assert every_kind.leftovers() == []


# ------------------------------------------------------------------- plain pytest, other options

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
    get_it = "get it with `make .venv`, or pip install 'minipar[mpi]'"
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
    for pid in sandbox.lines("pids"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert [path for path in sandbox.lines("segments") if Path(path).exists()] == []
    assert sandbox.leftovers() == []


# ------------------------------------------------------------------------------- mpirun by hand

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


# --------------------------------------------------------------------------------------- worlds

def test_worlds_names_and_marks_its_tests():
    mark = worlds(1, 3, mpi=(2, 4)).mark
    assert mark.args[0] == "world"
    assert [p.id for p in mark.args[1]] == ["sim-1", "sim-3", "mpi-2", "mpi-4"]
    assert [p.values[0].size for p in mark.args[1]] == [1, 3, 2, 4]
    assert [[m.kwargs for m in p.marks] for p in mark.args[1]] == [
        [], [], [{"min_size": 2}], [{"min_size": 4}]]


@worlds(2, 3, mpi=(2, 4))
def test_the_same_body_runs_in_both_worlds(world):
    def body(comm):
        assert comm.size == world.size
        heard = np.zeros(1, dtype=np.int64)
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        comm.sendrecv(np.array([comm.rank]), right, heard, left)
        assert heard[0] == left
        return comm.rank

    ranks = world.run(body)
    if isinstance(world, SimulatedWorld):
        assert ranks == list(range(world.size))
    else:
        assert len(ranks) <= 1
