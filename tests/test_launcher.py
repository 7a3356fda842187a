"""launch(): a failure on one rank ends all, in both worlds, with rank, cause and status."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster, Deadlock
from minipar.environment import find_mpirun, mpirun_environment
from minipar.launcher import UsageError, launch, ranks_option, simulate
from minipar.testing.status_board import wait_until

needs_mpi = pytest.mark.skipif(find_mpirun() is None,
                               reason="there is no mpirun: pip install '.[mpi]'")
WORLDS = [pytest.param(True, marks=needs_mpi, id="real"), pytest.param(False, id="simulated")]

PROGRAM = """
import sys
import numpy as np
from minipar.comm.collectives import all_reduce
from minipar.launcher import UsageError, launch

def main(comm):
{body}

launch(main, num_ranks=3)
print("after")
"""


def run(tmp_path, body: str, mpi: bool, *words: str, **variables: str):
    """Run a program whose main has this body, on three ranks."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
    launcher = [find_mpirun(), "-n", "3"] if mpi else []
    return subprocess.run([*launcher, sys.executable, str(program), *words], text=True, timeout=90,
                          env={**mpirun_environment(), **variables}, capture_output=True)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("mpi", WORLDS)
def test_a_program_that_works(tmp_path, mpi):
    done = run(tmp_path, """
        total = all_reduce(comm, np.array([comm.rank + 1]))
        if comm.rank == 0:
            print(f"total {total[0]} of {comm.size}")
        """, mpi)
    assert done.returncode == 0 and "total 6 of 3" in done.stdout and "after" in done.stdout


@pytest.mark.parametrize("mpi", WORLDS)
def test_an_exception_on_one_rank_ends_all(tmp_path, mpi):
    done = run(tmp_path, """
        if comm.rank == 1:
            raise KeyError("the cause")
        all_reduce(comm, np.ones(4))            # would wait for ever
        """, mpi)
    assert done.returncode not in (0, None)
    assert "KeyError: 'the cause'" in done.stderr and "program.py" in done.stderr
    assert re.search(r"rank 1 of 3", done.stderr)
    assert "after" not in done.stdout


def wait_in_vain(comm):
    comm.recv(np.zeros(1), 1 - comm.rank)


def test_a_deadlock_ends_a_program_and_is_raised_where_somebody_types(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["program.py"])
    with pytest.raises(SystemExit) as ended:
        launch(wait_in_vain, 2)
    assert ended.value.code == 1 and "deadlock: no rank can go on" in capsys.readouterr().err
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)         # a prompt; IPython sets it, too
    with pytest.raises(Deadlock, match="rank 1 waits to receive from rank 0"):
        launch(wait_in_vain, 2)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json", "--ranks=no"])
    with pytest.raises(UsageError, match="--ranks takes a positive"):
        launch(wait_in_vain)
    assert capsys.readouterr() == ("", "")


def test_an_interactive_session_survives_a_deadlock(tmp_path):
    (tmp_path / "typed").write_text(
        "import numpy as np\nfrom minipar.launcher import launch\n"
        "launch(lambda comm: comm.recv(np.zeros(1), 1 - comm.rank), 2)\n"
        "print('still', 'here')\n")
    with open(tmp_path / "typed") as typed:
        done = subprocess.run([sys.executable, "-i", "-q"], stdin=typed, text=True, timeout=90,
                              env=mpirun_environment(), capture_output=True)
    assert "Deadlock: deadlock: no rank can go on" in done.stderr
    assert "still here" in done.stdout


@needs_mpi
def test_a_rank_that_cannot_begin_ends_all(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from minipar.comm.mpi import guardian\n"
                       "from minipar.launcher import launch\n"
                       "guardian.subprocess = None         # no process to be had\n"
                       "launch(lambda comm: None)\n")
    done = subprocess.run([find_mpirun(), "-n", "3", sys.executable, str(program)], text=True,
                          timeout=90, env=mpirun_environment(), capture_output=True)
    assert done.returncode != 0 and "has no attribute 'Popen'" in done.stderr


@pytest.mark.parametrize("mpi", WORLDS)
def test_sys_exit_on_one_rank_ends_all(tmp_path, mpi):
    done = run(tmp_path, """
        if comm.rank == 2:
            sys.exit(3)
        all_reduce(comm, np.ones(4))
        """, mpi)
    assert done.returncode == 3 and "after" not in done.stdout


@pytest.mark.parametrize("mpi", WORLDS)
@pytest.mark.parametrize("who", ["True", "comm.rank == 1"])
def test_a_usage_error_is_one_line(tmp_path, mpi, who):
    done = run(tmp_path, f"""
        if {who}:
            raise UsageError("expected this, not that: do so")
        all_reduce(comm, np.ones(4))
        """, mpi)
    assert done.returncode == 2
    assert done.stderr.count("expected this, not that: do so") == 1
    assert "Traceback" not in done.stderr


def test_a_simulated_mismatch_is_one_report(tmp_path):
    done = run(tmp_path, """
        all_reduce(comm, np.ones(3), op="max" if comm.rank == 2 else "sum")
        """, False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    first, *lines = done.stderr.splitlines()
    assert first == "minipar: collective mismatch: ranks differ in op" and len(lines) == 3
    assert lines[1].startswith("  rank 2 called all_reduce(") and lines[1].endswith("program.py:9")


def test_a_simulated_deadlock_is_a_sentence(tmp_path):
    done = run(tmp_path, """
        comm.send(np.ones(5), (comm.rank + 1) % comm.size)
        """, False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "deadlock: no rank can go on" in done.stderr
    assert "rank 2 waits to send to rank 0 (tag 0, 40 bytes) at" in done.stderr
    assert re.search(r"program\.py:9", done.stderr)


@needs_mpi
def test_a_real_deadlock_ends_with_a_report_of_every_rank(tmp_path):
    done = run(tmp_path, """
        import os, pathlib; pathlib.Path(sys.argv[1], f"pid-{os.getpid()}").touch()
        comm.recv(np.ones(5), (comm.rank + 1) % comm.size)
        """, True, str(tmp_path), MINIPAR_TIMEOUT="2")
    assert done.returncode not in (0, None)
    for rank in range(3):
        assert re.search(rf"rank {rank} of 3 has waited 2 s to receive from rank {(rank + 1) % 3} "
                         r"\(tag 0, 40 bytes\) at .*program\.py:10", done.stderr), done.stderr
    pids = [int(file.name.split("-")[1]) for file in tmp_path.glob("pid-*")]
    assert len(pids) == 3
    assert wait_until(lambda: not any(is_running(pid) for pid in pids), 5), "a rank was left over"


@pytest.mark.slow
@needs_mpi
def test_a_rank_that_does_not_come_to_the_shared_window_is_named(tmp_path):
    done = run(tmp_path, """
        all_reduce(comm, np.ones(5), algorithm="shared")
        if comm.rank == 1:
            comm.recv(np.ones(5), 2)
        all_reduce(comm, np.ones(5), algorithm="shared")
        """, True, MINIPAR_TIMEOUT="2")
    assert done.returncode not in (0, None)
    for rank in (0, 2):
        assert re.search(rf"rank {rank} of 3 has waited 2 s to meet rank 1 in all_reduce at "
                         r".*program\.py:12", done.stderr), done.stderr
    assert "rank 1 of 3 has waited 2 s to receive from rank 2" in done.stderr


def test_ranks_on_the_command_line(tmp_path):
    body = "comm.rank == 0 and print(comm.size, sys.argv[1:])"
    assert run(tmp_path, body, False).stdout.startswith("3 []")
    assert run(tmp_path, body, False, "--ranks", "5", "x").stdout.startswith("5 ['x']")
    assert run(tmp_path, body, False, "y", "--ranks=2").stdout.startswith("2 ['y']")
    wrong = run(tmp_path, body, False, "--ranks", "none")
    assert wrong.returncode == 2 and "--ranks takes a positive whole number" in wrong.stderr


@pytest.mark.parametrize("words", [["--ranks"], ["--ranks", "0"], ["--ranks", "-1"], ["--ranks=x"]])
def test_a_wrong_number_of_ranks(words):
    with pytest.raises(UsageError, match="positive whole number"):
        ranks_option(["program", *words])


def test_reported_work_takes_virtual_time():
    """A device of 1 FLOP/s and endless memory bandwidth: a product of 2·2·3·4 FLOPs takes 48 s."""
    def main(comm):
        Tensor(np.ones((2, 3))) @ Tensor(np.ones((3, 4)))
        return comm.now()
    cluster = Cluster(2, flops_per_second=1.0, memory_bandwidth=float("inf"), trace=True)
    results, seconds = simulate(main, cluster)
    assert results == [48.0, 48.0] and seconds == 48.0
    assert [span.name for span in cluster.trace.named_spans()] == ["MatMul forward"] * 2
