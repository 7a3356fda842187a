"""No wait is endless: a thread that watches how long a real rank sits in one MPI call.

mpi4py releases Python's lock inside MPI, so this thread runs while its rank is stuck.  After the
limit (MINIPAR_TIMEOUT, 300 s) every stuck rank says what it waits for and at which line; then the
run is ended.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..environment import wait_limit
from .deadlock import source_line
from .mpi_library import abort


class Watchdog:
    """Watches this process's one rank, which tells it when a wait begins and ends."""

    def __init__(self, MPI, rank: int, size: int):
        self.MPI, self.rank, self.size, self.limit = MPI, rank, size, wait_limit()
        self.waiting: tuple[float, tuple] | None = None
        self.main_thread = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    @contextmanager
    def watching(self, description: tuple) -> Iterator[None]:
        """Context of one wait; description is (kind, peer, tag, bytes, label)."""
        self.waiting = (time.monotonic(), description)
        try:
            yield
        finally:
            self.waiting = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self.limit / 4))
            waiting = self.waiting
            if waiting is None or time.monotonic() - waiting[0] < self.limit:
                continue
            kind, peer, tag, num_bytes, label = waiting[1]
            where = source_line(sys._current_frames().get(self.main_thread))
            whom = "" if peer is None else f" rank {peer} (tag {tag}, {num_bytes} bytes)"
            print(f"minipar: rank {self.rank} of {self.size} has waited {self.limit:g} s to "
                  f"{kind}{whom}{' in ' + label if label else ''} at {where}",
                  file=sys.stderr, flush=True)
            time.sleep(1.5)             # the other stuck ranks say the same of themselves
            abort(self.MPI, 1)
