"""The guardian: who says it when a real rank dies so suddenly that it cannot say so itself.

A rank that is killed (`kill -9`, no memory left) or crashes in C code says nothing, and `mpirun`
ends the others within milliseconds without a word about which one it was.  So the first rank of
each node starts one small process, in a session of its own that `mpirun` does not end:

    rank 0 ─┐                   a line that ends although its rank never wrote "left" or "told":
    rank 1 ─┼─ guardian         this rank has died.  Say so, and of what; end those that are
    rank 2 ─┘                   still there after 2 s.  No line left: end.

Lines are sockets, which the kernel closes for whoever dies, in the order in which they die.

    "left"  I am through with the program.  It is passed on: who waits for me waits for ever.
    "told"  I have said what is wrong, and now end the run: no other end needs a word.

This file is both ends: `Guardian` is a rank's; run as a program it is the other one, for which it
needs nothing but Python itself.
"""

import atexit
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE = 2.0      # seconds that mpirun has to end the others
MOST_NAMED = 60     # bytes of a folder's name; that of a socket in it may have about 100


class Guardian:
    """A rank's line to the guardian of its node; all ranks of the node, `box`, make theirs."""

    def __init__(self, box: Any, rank: int, size: int):
        folder = listener = None
        if box.rank == 0:
            folder = tempfile.mkdtemp(prefix="minipar-", dir=short_folder())
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{folder}/guardian")
            listener.listen(box.size)
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(f"{box.bcast(folder)}/guardian")
        self.say(f"{rank} {os.getpid()}")
        box.Barrier()                   # all are in the queue of the listener
        if listener is not None:
            subprocess.Popen(
                [sys.executable, "-I", __file__, str(listener.fileno()), str(size)],
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True)
            listener.close()
            shutil.rmtree(folder)
        with suppress(OSError):
            self.line.recv(1)           # from now on it is watching
        self.line.setblocking(False)
        self._departed: set[int] = set()
        atexit.register(self.say, "left")

    def say(self, word: str) -> None:
        """See this module's docstring.  If there is no guardian any more, nobody listens."""
        with suppress(OSError):
            self.line.sendall(f"{word}\n".encode())

    def departed(self) -> set[int]:
        """The ranks of this node that have left so far, as numbers of the world."""
        with suppress(OSError):
            self._departed |= set(map(int, self.line.recv(1 << 16).split()))
        return self._departed


def short_folder() -> str:
    """Where temporary files go, if that is short enough for the name of a socket; else /tmp."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= MOST_NAMED else "/tmp"


class Ward:
    """A rank as the guardian knows it, from its first words on."""

    rank = pid = 0
    may_go = True

    def __init__(self, line: socket.socket):
        self.line = line

    def hear(self) -> list[str]:
        """What it says now; nothing if it is gone."""
        with suppress(ConnectionResetError):        # gone with a word of ours unread
            return self.line.recv(1 << 12).decode().splitlines()
        return []


def guard(listener: socket.socket, size: int) -> None:
    """The guardian's life, until all ranks of its node have gone."""
    lines = selectors.DefaultSelector()     # on Linux it tells of events in their order
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            line, _ = listener.accept()
            lines.register(line, selectors.EVENT_READ, Ward(line))
    listener.close()
    tell_all(lines, "\n")
    is_told, segments = False, set()
    while lines.get_map():
        events = lines.select(PATIENCE if is_told else None)
        for ward in [key.data for key, _ in events]:
            words = ward.hear()
            for word in words:
                if word == "told":
                    is_told = True
                elif word == "left":
                    ward.may_go = True
                    tell_all(lines, f"{ward.rank}\n")
                else:
                    ward.rank, ward.pid = map(int, word.split())
                    ward.may_go = False
                    segments |= shared_memory(ward.pid)
            if not words:
                lines.unregister(ward.line)
                cause = None if is_told else death(ward.pid, ward.may_go)
                if cause:
                    with suppress(OSError):         # mpirun has gone, and stderr with it
                        print(f"minipar: rank {ward.rank} of {size} {cause}", file=sys.stderr)
                    is_told = True
        if not events:                      # mpirun did not end them
            for pid in filter(None, [key.data.pid for key in lines.get_map().values()]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    for path in segments:               # nobody uses them any more
        path.unlink(missing_ok=True)


def shared_memory(pid: int) -> set[Path]:
    """The shared memory of a rank that only Open MPI's mpirun removes, if it is not killed."""
    with suppress(OSError):                         # there is no /proc on macOS
        paths = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        return {Path(path) for path in paths
                if path.startswith(("/dev/shm/vader_segment.", "/dev/shm/sm_segment."))}
    return set()


def tell_all(lines: selectors.BaseSelector, words: str) -> None:
    """Tell every rank that can still hear."""
    for key in lines.get_map().values():
        with suppress(OSError):
            key.data.line.sendall(words.encode())


def death(pid: int, may_go: bool) -> str | None:
    """What a process that is just ending dies of; None if nothing is wrong with that."""
    try:    # field 52: the status, unless mpirun has been faster in taking it
        status = int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    except (OSError, ValueError):
        return None if may_go else "died suddenly: killed, or crashed (mpirun may say of what)"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.strsignal(number)})"
    if may_go:
        return None
    return f"ended with exit status {os.WEXITSTATUS(status)}, without leaving MPI (os._exit?)"


if __name__ == "__main__":
    guard(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
