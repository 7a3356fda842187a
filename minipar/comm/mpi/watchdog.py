"""The watchdog: a thread that ends the run when a real rank waits too long in one call.

mpi4py releases Python's lock inside MPI, so this thread runs while its rank is stuck.  If a rank
waits for a rank of its node that has left the program, its watchdog reports that within seconds.
After the limit (MINIPAR_TIMEOUT, by default 300 s) every stuck rank reports what it waits for, and
at which line.  Then the run is ended.
"""

import sys
import threading
import time
from typing import Any

from ...environment import wait_limit
from ..communicator import source_line
from .guardian import Guardian, abort
from .process import Process

GRACE = 2.0     # seconds in which messages of a rank that has left may still arrive


class Watchdog:
    """Watches a process, whose `waiting` says what it waits for; made by `world.py`."""

    def __init__(self, MPI: Any, process: Process, guardian: Guardian):
        self.MPI, self.process, self.guardian, self.limit = MPI, process, guardian, wait_limit()
        self.main_thread = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def _watch(self) -> None:
        seen, since = None, 0.0         # the wait seen last time, and when it was first seen
        alone = None                    # the wait for a rank that had left, seen last time
        while True:
            time.sleep(min(1.0, self.limit / 4))
            waiting, now = self.process.waiting, time.monotonic()
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
        process = self.process
        kind, peer, tag, num_bytes, label = description
        where = source_line(process.program or sys._current_frames().get(self.main_thread))
        whom = "" if peer is None else f" rank {peer} (tag {tag}, {num_bytes} bytes)"
        what = f"{kind}{whom}{' in ' + label if label else ''} at {where}"
        print(f"minipar: rank {process.world_rank} of {len(process.nodes)} {sentence.format(what)}",
              file=sys.stderr, flush=True)
