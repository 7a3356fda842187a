"""No wait is endless: a thread that watches how long a real rank sits in one MPI call.

mpi4py releases Python's lock inside MPI, so this thread runs while its rank is stuck.  A rank that
waits for one that has left the program says so after 2 s.  After the limit (MINIPAR_TIMEOUT,
300 s) every stuck rank says what it waits for and at which line.  Then the run is ended.
"""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..environment import wait_limit
from .deadlock import source_line
from .guardian import Guardian
from .mpi_library import abort

GRACE = 2.0     # seconds that messages may be under way whose sender has left


class Watchdog:
    """Watches this process's one rank, which tells it when a wait begins and ends."""

    def __init__(self, MPI, rank: int, size: int, guardian: Guardian):
        self.MPI, self.rank, self.size, self.limit = MPI, rank, size, wait_limit()
        self.guardian = guardian
        self.waiting: tuple[float, tuple, Sequence[int]] | None = None
        self.main_thread = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    @contextmanager
    def watching(self, description: tuple, peers: Sequence[int]) -> Iterator[None]:
        """Context of one wait; description is (kind, peer, tag, bytes, label).

        `peers` are the ranks of the world without which it does not end.
        """
        self.waiting = (time.monotonic(), description, peers)
        try:
            yield
        finally:
            self.waiting = None

    def _watch(self) -> None:
        alone = None                    # the wait for a rank that had left when we last looked
        while True:
            time.sleep(min(1.0, self.limit / 4))
            waiting = self.waiting
            if waiting is None:
                continue
            began, description, peers = waiting
            seconds = time.monotonic() - began
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
        where = source_line(sys._current_frames().get(self.main_thread))
        whom = "" if peer is None else f" rank {peer} (tag {tag}, {num_bytes} bytes)"
        what = f"{kind}{whom}{' in ' + label if label else ''} at {where}"
        print(f"minipar: rank {self.rank} of {self.size} {sentence.format(what)}",
              file=sys.stderr, flush=True)
