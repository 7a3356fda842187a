"""A rank dies on real MPI: all others end, the cause is named, nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minipar.comm.mpi.watchdog import GRACE
from minipar.environment import find_mpirun, mpirun_environment
from minipar.testing.status_board import wait_until

pytestmark = pytest.mark.skipif(find_mpirun() is None,
                                reason="there is no mpirun: pip install '.[mpi]'")

PROGRAM = """
import ctypes, os, signal, sys, time
from pathlib import Path
import numpy as np
from minipar.comm.mpi import watchdog
from minipar.comm.collectives import all_reduce, barrier, reduce
from minipar.comm.work import start_work
from minipar.launcher import launch

watchdog.GRACE = %s

def main(comm):
    all_reduce(comm, np.ones(4))
    memory = [line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line]
    Path(sys.argv[1], f"rank-{comm.rank}").write_text("\\n".join([str(os.getpid()), *memory]))
    barrier(comm)
    if comm.rank == 2:
        %s
    while True:
        %s

launch(main)
"""

# Where mpirun was faster than the guardian, on a busy machine, no trace of it is left.
TOO_LATE = r"died suddenly: killed, or crashed \(mpirun may name the signal\)"
DEATHS = {      # what rank 2 does, what is said of it
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)",
               rf"(was killed by signal 9 \(Killed\)|{TOO_LATE})"),
    "crashed": ("ctypes.string_at(0)",
                rf"(was killed by signal 11 \(Segmentation fault\)|{TOO_LATE})"),
    "aborted": ("os.abort()", rf"(was killed by signal 6 \(Aborted\)|{TOO_LATE})"),
    "vanished": ("os._exit(0)",
                 rf"(ended with exit status 0, without leaving MPI \(os\._exit\?\)|{TOO_LATE})"),
    "failed": ("raise KeyError('the cause')", r"failed:\n(.*\n)*KeyError: 'the cause'"),
    "exited": ("sys.exit(3)", r"called sys\.exit\(3\)"),
    "exited in words": ("sys.exit('no data')", r"called sys\.exit\('no data'\)"),
}
OTHERS = {      # what the other ranks do meanwhile
    "in a collective": "all_reduce(comm, np.ones(100_000))",
    "in the library's": "all_reduce(comm, np.ones(10), algorithm='mpi')",
    "in a Work": "start_work(all_reduce, comm, np.ones(100_000)).wait()",
    "in Works": "[work.wait() for work in "
                "[start_work(all_reduce, comm, np.ones(9)) for _ in '12']]",
    "in receive": "comm.recv(np.ones(1), 3)",
    "computing": "sum(range(10**6))",
    "in BLAS": "np.ones((500, 500)) @ np.ones((500, 500))",
    "asleep": "time.sleep(60)",
}
# Slow, as another shows the same: a signal, words; in Works, in a collective, computing.
DEATHS_LIKE_ANOTHER = ("aborted", "exited in words")
OTHERS_LIKE_ANOTHER = ("in a Work", "in receive", "in BLAS", "asleep")


class Job:
    """Four ranks of PROGRAM; every process that has to do with them carries a mark."""

    def __init__(self, folder: Path, death: str, others: str, grace: float = GRACE):
        self.folder, program = folder, folder / "program.py"
        program.write_text(PROGRAM % (grace, death, others))
        self.mark = f"MINIPAR_TEST_MARK={folder}"
        name, value = self.mark.split("=", 1)
        self.process = subprocess.Popen(
            [find_mpirun(), "-n", "4", sys.executable, str(program), str(folder)], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**mpirun_environment(), name: value, "PYTHONFAULTHANDLER": "1"})

    def notes(self) -> list[list[str]]:
        """By rank: its process, and the shared memory it has."""
        notes = [path.read_text().split() for path in sorted(self.folder.glob("rank-?"))]
        return [note for note in notes if note]             # not those that are being written

    def end(self) -> tuple[int, str]:
        """Exit status and stderr; ended by force, and no answer, if it does not end by itself."""
        try:
            _, said = self.process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            for rank in self.notes():
                os.kill(int(rank[0]), signal.SIGABRT)       # they print where they are
            said = self.process.communicate(timeout=10)
            pytest.fail(f"it did not end: {said}")
        return self.process.returncode, said

    def processes(self) -> list[int]:
        """All that still run: ranks, mpirun's own, the guardian."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
            except OSError:
                pass
        return found

    def assert_nothing_is_left(self) -> None:
        assert len(self.notes()) == 4
        assert wait_until(lambda: not self.processes(), 5), self.processes()
        for _, *memory in self.notes():
            assert not [path for path in memory if Path(path).exists()]


@pytest.mark.parametrize(("death", "others"), [
    *(pytest.param(death, "in a collective",
                   marks=[pytest.mark.slow] * (death in DEATHS_LIKE_ANOTHER)) for death in DEATHS),
    *(pytest.param("killed", others, marks=[pytest.mark.slow] * (others in OTHERS_LIKE_ANOTHER))
      for others in OTHERS if others != "in a collective"),
    pytest.param("failed", "computing", marks=pytest.mark.slow), ("exited", "computing")])
@pytest.mark.one_in(2)
def test_all_others_end_and_the_cause_is_named(tmp_path, death, others):
    job = Job(tmp_path, DEATHS[death][0], OTHERS[others])
    status, said = job.end()
    assert status != 0 and re.search(f"minipar: rank 2 of 4 {DEATHS[death][1]}", said), said
    assert said.count("minipar:") == 1, said
    if death == "exited":
        assert status == 3
    job.assert_nothing_is_left()


def test_a_rank_that_is_killed_from_outside(tmp_path):
    job = Job(tmp_path, "pass", OTHERS["in a collective"])
    assert job.process.poll() is None and wait_until(lambda: len(job.notes()) == 4, 40)
    os.kill(int(job.notes()[1][0]), signal.SIGKILL)
    status, said = job.end()
    assert status != 0 and re.search(f"minipar: rank 1 of 4 {DEATHS['killed'][1]}", said), said
    assert said.count("minipar:") == 1, said
    job.assert_nothing_is_left()


def test_mpirun_itself_is_killed(tmp_path):
    job = Job(tmp_path, "pass", OTHERS["in a collective"])
    assert wait_until(lambda: len(job.notes()) == 4, 40)
    job.process.kill()
    job.end()
    job.assert_nothing_is_left()


MESSAGE = r"(send to|receive from) rank 2 \(tag 0, \d+ bytes\) in all_reduce"


@pytest.mark.parametrize(("leave", "others", "wait", "grace"), [
    ("return", "in a collective", MESSAGE, GRACE),
    ("sys.exit()", "in the library's", r"take part in MPI's own all_reduce", 0.1),
    pytest.param("sys.exit(0)", "in a Work", MESSAGE, 0.1, marks=pytest.mark.slow),
    pytest.param("return", "in Works", MESSAGE, 0.1, marks=pytest.mark.slow),
    pytest.param("return", "in split", r"split", 0.1, marks=pytest.mark.slow)])
def test_who_waits_for_a_rank_that_has_left_says_so(tmp_path, leave, others, wait, grace):
    job = Job(tmp_path, leave, {**OTHERS, "in split": "comm.split(0)"}[others], grace)
    status, said = job.end()
    assert status != 0
    assert re.search(rf"minipar: rank [013] of 4 waits to {wait}.* at .*program\.py:20, but rank 2 "
                     r"has left the program \(it returned, or called sys\.exit\(0\)\)", said), (
                         status, said, job.notes())
    job.assert_nothing_is_left()


def test_ranks_may_leave_at_different_times(tmp_path):
    """Messages sent before still arrive, and who needs no one may compute on."""
    job = Job(tmp_path, "comm.send(np.ones(3), 1); return",
              "time.sleep(0.5 * (3 - comm.rank)); comm.rank == 1 and comm.recv(np.ones(3), 2); "
              "sys.exit(0)")
    assert job.end() == (0, "")
    job.assert_nothing_is_left()


def test_who_has_done_its_part_may_leave_before_one_that_is_late(tmp_path):
    """Rank 0 waits in the library's reduce for rank 3, while the others have left it long ago."""
    job = Job(tmp_path, "pass", "comm.rank == 3 and time.sleep(3); "     # the watchdog looks thrice
              "reduce(comm, np.ones(3), algorithm='mpi'); sys.exit(0)", grace=0.1)
    assert job.end() == (0, "")
    job.assert_nothing_is_left()


def test_temporary_files_may_be_in_a_folder_with_a_long_name(tmp_path, monkeypatch):
    """Which a socket cannot have."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    job = Job(tmp_path, "pass", "sys.exit(0)")
    assert job.end() == (0, "")
    job.assert_nothing_is_left()
