"""No wait is endless: a thread that watches how long a real rank sits in one MPI call.

mpi4py releases Python's lock inside MPI, so this thread runs while its rank is stuck.  A rank that
waits for one that has left the program says so after 2 s.  After the limit (MINIPAR_TIMEOUT,
300 s) every stuck rank says what it waits for and at which line.  Then the run is ended.
"""

import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from ...environment import wait_limit
from ..communicator import source_line
from .guardian import Guardian
from .library import abort

GRACE = 2.0     # seconds that messages may be under way whose sender has left


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
    """Watches this process's one rank, which tells it when a wait begins and ends.

    `waiting` is the wait under way, (description, peers), a new tuple for each: by that the thread
    knows whether it is still the one that it saw last time, and no wait needs to ask the clock.
    """

    def __init__(self, MPI, rank: int, size: int, guardian: Guardian):
        self.MPI, self.rank, self.size, self.limit = MPI, rank, size, wait_limit()
        self.guardian = guardian
        self.waiting: tuple[tuple, Sequence[int]] | None = None
        self.main_thread = threading.get_ident()
        self.program: FrameType | None = None       # where it waits for a Work that runs elsewhere
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def watching(self, description: tuple, peers: Sequence[int]) -> Watching:
        """Context of one wait; description is (kind, peer, tag, bytes, label).

        `peers` are the ranks of the world without which it does not end.
        """
        return Watching(self, description, peers)

    def _watch(self) -> None:
        seen, since = None, 0.0         # the wait under way when we last looked, and since when
        alone = None                    # the one for a rank that had left when we last looked
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
                abort(self.MPI, self.guardian, 1)
            alone = waiting if gone else None
            if seconds > self.limit:
                self._report(description, f"has waited {self.limit:g} s to {{}}")
                time.sleep(1.5)         # the other stuck ranks say the same of themselves
                abort(self.MPI, self.guardian, 1)

    def _report(self, description: tuple, sentence: str) -> None:
        kind, peer, tag, num_bytes, label = description
        where = source_line(self.program or sys._current_frames().get(self.main_thread))
        whom = "" if peer is None else f" rank {peer} (tag {tag}, {num_bytes} bytes)"
        what = f"{kind}{whom}{' in ' + label if label else ''} at {where}"
        print(f"minipar: rank {self.rank} of {self.size} {sentence.format(what)}",
              file=sys.stderr, flush=True)
