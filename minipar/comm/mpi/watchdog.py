"""The watchdog: a thread that ends the run when a real rank waits too long in one MPI call.

mpi4py releases Python's lock inside MPI, so this thread runs while its rank is stuck.  A rank that
waits for one that has left the program reports it after 2 s.  After the limit (MINIPAR_TIMEOUT,
300 s) every stuck rank reports what it waits for, and at which line.  Then the run is ended.
"""

import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ...environment import wait_limit
from ..communicator import source_line
from .guardian import Guardian
from .library import abort

GRACE = 2.0     # seconds in which messages of a rank that has left may still arrive


class Watching:
    """Context of one wait.  A class of its own: a generator would take longer than a message."""

    __slots__ = ("watchdog", "description", "peers")

    def __init__(self, watchdog: "Watchdog", description: tuple, peers: Sequence[int]):
        self.watchdog, self.description, self.peers = watchdog, description, peers

    def __enter__(self) -> None:
        self.watchdog.waiting = self.description, self.peers

    def __exit__(self, *error: object) -> None:
        self.watchdog.waiting = None


class Watchdog:
    """Watches this process's rank, which sets `waiting` when a wait begins and ends.

    `waiting` is the current wait, (description, peers): a new tuple for each wait, by which the
    thread recognizes the one that it saw last time.  So no wait needs to read the clock.
    """

    def __init__(self, MPI: Any, rank: int, size: int, guardian: Guardian):
        self.MPI, self.rank, self.size, self.limit = MPI, rank, size, wait_limit()
        self.guardian = guardian
        self.waiting: tuple[tuple, Sequence[int]] | None = None
        self.main_thread = threading.get_ident()
        self.program: FrameType | None = None       # of a wait for a Work: the program's frame
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def watching(self, description: tuple, peers: Sequence[int]) -> Watching:
        """Context of one wait; description is (kind, peer, tag, bytes, label).

        `peers` are the world numbers of the ranks that it needs.
        """
        return Watching(self, description, peers)

    def _watch(self) -> None:
        seen, since = None, 0.0         # the wait seen last time, and when it was first seen
        alone = None                    # the wait for a rank that had left, seen last time
        while True:
            time.sleep(min(1.0, self.limit / 4))
            waiting, now = self.waiting, time.monotonic()
            if waiting is not seen:
                seen, since = waiting, now
            if waiting is None:
                continue
            description, peers = waiting
            seconds = now - since
            gone = sorted(self.guardian.departed() & set(peers))
            if gone and seconds > GRACE and waiting is alone:
                self._report(description, f"waits to {{}}, but rank {gone[0]} has left the program "
                             "(it returned, or called sys.exit(0))")
                abort(self.MPI, 1)
            alone = waiting if gone else None
            if seconds > self.limit:
                self._report(description, f"has waited {self.limit:g} s to {{}}")
                time.sleep(1.5)         # so that the other stuck ranks can report, too
                abort(self.MPI, 1)

    def _report(self, description: tuple, sentence: str) -> None:
        kind, peer, tag, num_bytes, label = description
        where = source_line(self.program or sys._current_frames().get(self.main_thread))
        whom = "" if peer is None else f" rank {peer} (tag {tag}, {num_bytes} bytes)"
        what = f"{kind}{whom}{' in ' + label if label else ''} at {where}"
        print(f"minipar: rank {self.rank} of {self.size} {sentence.format(what)}",
              file=sys.stderr, flush=True)
