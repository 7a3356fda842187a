"""The guardian names the first of several deaths, however late it reads of them."""

import fcntl
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from threading import Timer

import pytest

from minipar.comm.mpi import guardian
from minipar.comm.mpi.guardian import guard


class Ranks:
    """Two processes as ranks, their lines, which this process holds too, and their guardian."""

    def __init__(self, codes: tuple[str, ...]):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("guardian")
        self.listener.listen(2)
        self.lines = [socket.socket(socket.AF_UNIX) for _ in codes]
        self.processes = [
            subprocess.Popen([sys.executable, "-c", f"import ctypes, os, time; {code}"],
                             pass_fds=[line.fileno()])
            for code, line in zip(codes, self.lines, strict=True)]
        for rank, line in enumerate(self.lines):
            line.connect("guardian")
            with tempfile.TemporaryFile(buffering=0) as note:
                note.write(f"does {rank}".encode())
                socket.send_fds(line, [f"{rank} {self.processes[rank].pid}".encode()],
                                [note.fileno()])

    def wait_for(self, rank: int) -> None:
        """Until it is dead; its exit status is still to be taken."""
        os.waitid(os.P_PID, self.processes[rank].pid, os.WEXITED | os.WNOWAIT)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.wait_for(rank)

    def close_lines(self) -> None:
        """Those of this process: now a line closes when its rank dies."""
        for line in self.lines:
            line.close()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """A function that makes Ranks; they are ended after the test."""
    monkeypatch.chdir(tmp_path)         # the name of a socket is short
    with ExitStack() as stack:
        def make(*codes):
            pair = Ranks(codes)
            stack.callback(pair.end)
            return pair
        yield make


@pytest.mark.parametrize(("code", "said"), [
    ("ctypes.string_at(0)", "was killed by signal 11 (Segmentation fault)"),
    ("os._exit(3)", "ended with exit status 3, without leaving MPI (os._exit?)"),
    ("os.kill(os.getpid(), 9)",
     "died suddenly: killed, or crashed (mpirun may name the signal)")])
def test_who_is_killed_for_another_is_not_blamed(ranks, capsys, code, said):
    """Rank 1 dies, but its line closes only after mpirun has killed rank 0: this test holds it."""
    pair = ranks("time.sleep(60)", code)
    pair.wait_for(1)
    if "died" in said:
        pair.processes[1].wait()        # as mpirun does
    pair.kill(0)
    pair.lines[0].close()
    Timer(0.2, pair.close_lines).start()
    guard(pair.listener, 2)
    assert capsys.readouterr().err == f"minipar: rank 1 of 2 {said}; seen last: does 1\n"


@pytest.mark.parametrize("late", ["\n", "0\n"], ids=["all begin", "rank 0 has left"])
def test_the_first_death_counts_even_if_the_guardian_is_late(ranks, capsys, monkeypatch, late):
    """Rank 1 is killed, then rank 0, while the guardian tells all ranks something."""
    pair = ranks("time.sleep(60)", "time.sleep(60)")

    def tell_all(lines, words):
        if words == "\n":
            if late != words:
                pair.lines[0].sendall(b"left\n")
            pair.close_lines()
        if words == late:
            pair.kill(1)
            pair.kill(0)
            pair.processes[0].wait()    # as mpirun does, and not yet for rank 1
    monkeypatch.setattr(guardian, "tell_all", tell_all)
    guard(pair.listener, 2)
    assert capsys.readouterr().err == (
        "minipar: rank 1 of 2 was killed by signal 9 (Killed); seen last: does 1\n")


RANK = """
import sys, time
from types import SimpleNamespace
from minipar.comm.mpi.guardian import Guardian
Guardian(SimpleNamespace(rank=1, bcast=lambda _: ".", Barrier=lambda: None), 1, 2)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="which file is closed first is Linux's order")
def test_a_line_closes_before_the_socket_of_the_launcher(tmp_path, monkeypatch):
    """Even if that has a number above those that were free."""
    monkeypatch.chdir(tmp_path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("guardian")
    listener.listen()
    launcher, of_rank = socket.socketpair()
    number = fcntl.fcntl(of_rank, fcntl.F_DUPFD, 100)
    rank = subprocess.Popen([sys.executable, "-c", RANK], pass_fds=[number])
    of_rank.close()
    os.close(number)
    line, _ = listener.accept()
    with selectors.DefaultSelector() as events:
        line.recv(100)
        events.register(launcher, selectors.EVENT_READ, "launcher")
        events.register(line, selectors.EVENT_READ, "line")
        line.sendall(b"\n")
        rank.kill()
        rank.wait()
        assert [key.data for key, _ in events.select()] == ["line", "launcher"]
