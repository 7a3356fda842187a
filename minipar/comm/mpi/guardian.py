"""The guardian: a process that reports a real rank which died too suddenly to report itself.

A rank that is killed (`kill -9`, no memory left) or crashes in C code prints nothing.  `mpirun`
ends the others within milliseconds, without naming it.  So the first rank of each node starts one
small process, in a session of its own that `mpirun` does not end:

    rank 0 ─┐                   If a line closes, and its rank never wrote "left" or "told", this
    rank 1 ─┼─ guardian         rank has died.  Report it, and its cause; end the ranks that are
    rank 2 ─┘                   still there after 2 s.  When no line is left, end.

Lines are sockets, which the kernel closes for dead processes, in the order in which they die.  If a
child process of a dead rank holds the rank's line open, `mpirun` kills the others before this line
closes.  So a killed rank is not blamed while another is dead, or dying of something else.

    rank 1    killed ─▶ its line closes ─▶ its socket to mpirun closes       first its line, since
    mpirun                    │                └─▶ kills ranks 0 and 2       its number is higher
    guardian                  └─▶ reports rank 1       └─▶ their lines close: no cause

    "left"  This rank has left the program.  The guardian tells all ranks of the node, since a wait
            for this rank would not end.
    "told"  This rank has reported what is wrong, and ends the run: report no other death.

Under MINIPAR_CHECK=1, a rank notes what it does in a file, which the report of its death quotes.
These notes are many: on the rank's line, unread notes could hide that the line has closed.

This file is both ends of a line: `Guardian` is the rank's end.  Run as a program, this file is the
guardian, which needs only Python itself.
"""

import atexit
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

NOTE = 1000         # bytes of the note of what a rank does, at most
PATIENCE = 2.0      # seconds that mpirun has to end the others
BY_MPIRUN = {-signal.SIGKILL, -signal.SIGTERM}      # exit codes of ranks that mpirun ends
HIGH = 200          # a file descriptor above those of the launcher's sockets
MOST_NAMED = 60     # bytes of a folder's name, since the path of a socket in it may have about 100


class Guardian:
    """A rank's line to the guardian of its node; made by all ranks of the node's communicator."""

    made: ClassVar[list["Guardian"]] = []       # of this process: one for each world

    def __init__(self, node: Any, rank: int, size: int):
        from fcntl import F_DUPFD_CLOEXEC, fcntl  # Windows has none
        folder, listener = "", None
        if node.rank == 0:
            folder = tempfile.mkdtemp(prefix="minipar-", dir=short_folder())
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{folder}/guardian")
            listener.listen(node.size)
        folder = node.bcast(folder)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"{folder}/guardian")
            # Linux closes the files of a dead process from the highest number down.  So this line
            # tells the guardian of its death before mpirun learns of it and kills the others.
            self.line = socket.socket(fileno=fcntl(line, F_DUPFD_CLOEXEC, HIGH))
        self.file = os.open(f"{folder}/{rank}", os.O_RDWR | os.O_CREAT)
        socket.send_fds(self.line, [f"{rank} {os.getpid()}".encode()], [self.file])
        node.Barrier()                  # all are in the queue of the listener
        if listener is not None:
            subprocess.Popen(
                [sys.executable, "-I", __file__, str(listener.fileno()), str(size)],
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True)
            listener.close()
            shutil.rmtree(folder)
        with suppress(OSError):
            self.line.recv(1)           # the guardian is watching now
        self.line.setblocking(False)
        self._departed: set[int] = set()
        atexit.register(self.say, "left")
        self.made.append(self)

    def say(self, word: str) -> None:
        """Write "left" or "told"; without effect if the guardian has ended."""
        with suppress(OSError):
            self.line.sendall(f"{word}\n".encode())

    def note(self, what: str) -> None:
        """Keep what this rank does now, for the report of its death."""
        with suppress(OSError):         # the disk is full
            os.pwrite(self.file, what.encode()[:NOTE].ljust(NOTE), 0)

    def departed(self) -> set[int]:
        """The world numbers of the ranks of this node that have left the program so far."""
        with suppress(OSError):
            self._departed |= set(map(int, self.line.recv(1 << 16).split()))
        return self._departed


def abort(MPI: Any, code: int) -> None:
    """End every rank at once, with this exit status, after the reason has been printed.

    MPI's own message about it, which would hide the reason, is suppressed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for guardian in Guardian.made:
        guardian.say("told")
    time.sleep(0.5)             # on an abort mpirun drops output that it has not passed on
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    MPI.COMM_WORLD.Abort(code)


def short_folder() -> str:
    """The folder of temporary files, if its path is short enough for a socket in it; else /tmp."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= MOST_NAMED else "/tmp"


class Ward:
    """A rank as the guardian knows it."""

    has_left = False

    def __init__(self, line: socket.socket):
        self.line = line
        words, files, _, _ = socket.recv_fds(line, 1 << 12, 1)
        (self.rank, self.pid), (self.file,) = map(int, words.split()), files

    @property
    def seen(self) -> str:
        """The last note of the rank about itself; "" if it writes none."""
        note = os.pread(self.file, NOTE, 0).decode(errors="ignore").rstrip()
        return note and f"; seen last: {note}"

    def hear(self) -> list[str]:
        """The words that the rank has written since the last call; [] if its line has closed."""
        with suppress(ConnectionResetError):        # closed with a message of ours unread
            return self.line.recv(1 << 12).decode().splitlines()
        return []

    def has_hung_up(self) -> bool:
        """True if the rank's line has closed, even if words of it are left to read."""
        line = select.poll()
        line.register(self.line, 0)
        return bool(line.poll(0))


def guard(listener: socket.socket, size: int) -> None:
    """Watch the lines of all ranks of the node until the last one closes."""
    # On Linux a selector reports lines in the order of their news.  A line whose word is unread
    # keeps its place when it closes.  So all first words are read before a rank may go on …
    lines = selectors.DefaultSelector()
    listener.setblocking(False)
    segments: set[Path] = set()         # shared memory
    with suppress(BlockingIOError):
        while True:
            ward = Ward(listener.accept()[0])
            segments |= shared_memory(ward.pid)
            lines.register(ward.line, selectors.EVENT_READ, ward)
    listener.close()
    tell_all(lines, "\n")
    is_told = False
    while lines.get_map():
        events = lines.select(PATIENCE if is_told else None)
        # … and a rank that has left comes after those that have not.
        for ward in sorted([key.data for key, _ in events], key=lambda ward: ward.has_left):
            words = ward.hear()
            for word in words:
                if word == "told":
                    is_told = True
                else:
                    ward.has_left = True
                    tell_all(lines, f"{ward.rank}\n")
            if not words:
                lines.unregister(ward.line)
                others = [key.data for key in lines.get_map().values()]
                cause = None if is_told else first_cause(ward, others)
                if cause:
                    with suppress(OSError):         # mpirun has gone, and stderr with it
                        print(f"minipar: rank {cause[0]} of {size} {cause[1]}", file=sys.stderr)
                    is_told = True
        if not events:                      # mpirun has not ended the others
            for key in lines.get_map().values():
                with suppress(ProcessLookupError):
                    os.kill(key.data.pid, signal.SIGKILL)
    for path in segments:               # no process uses them any more
        path.unlink(missing_ok=True)


def shared_memory(pid: int) -> set[Path]:
    """The shared memory of a rank that Open MPI's mpirun would remove, unless it is killed."""
    with suppress(OSError):                         # there is no /proc on macOS
        paths = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        return {Path(path) for path in paths
                if path.startswith(("/dev/shm/vader_segment.", "/dev/shm/sm_segment."))}
    return set()


def tell_all(lines: selectors.BaseSelector, words: str) -> None:
    """Write `words` to every rank whose line is open."""
    for key in lines.get_map().values():
        with suppress(OSError):
            key.data.line.sendall(words.encode())


def first_cause(ward: Ward, others: list[Ward]) -> tuple[int, str] | None:
    """(rank, cause of death) of `ward`, whose line has closed, or of the rank that died before it.

    If mpirun killed `ward`, it did so because another rank had died.
    """
    if exit_code(ward.pid) in BY_MPIRUN:
        # Lines close in the order of deaths: a rank that mpirun has collected, with a closed line
        # that comes after this one's, died after this one.
        victims = {0, *BY_MPIRUN}
        dying = [other for other in others if exit_code(other.pid) not in
                 (victims | {None} if other.has_hung_up() else victims)]
        ward = next(filter(death, dying), ward)
    cause = death(ward)
    return (ward.rank, cause) if cause else None


def exit_code(pid: int) -> int | None:
    """The exit code of a process: -n if signal n killed it, 0 while it runs.

    It is None once mpirun has collected the dead process.
    """
    with suppress(OSError, ValueError):
        status = int(Path(f"/proc/{pid}/stat").read_text().split()[-1])     # field 52
        return os.waitstatus_to_exitcode(status)
    return None


def death(ward: Ward) -> str | None:
    """The cause of death of a process that is ending; None if it ends in good order."""
    code = exit_code(ward.pid)
    if code is not None and code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)}){ward.seen}"
    if ward.has_left:
        return None
    if code is None:
        return f"died suddenly: killed, or crashed (mpirun may name the signal){ward.seen}"
    return f"ended with exit status {code}, without leaving MPI (os._exit?){ward.seen}"


if __name__ == "__main__":
    guard(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
