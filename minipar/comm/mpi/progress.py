"""The progress engine of a real rank: each Work asks MPI for its request whenever it is resumed.

The program blocks inside the MPI library if one Work is under way, and else polls one request after
the other.
"""

import sys
import time
from typing import Any

from greenlet import getcurrent

from ..work import ProgressEngine, pause


class MPIProgressEngine(ProgressEngine):
    """The Works of one real rank."""

    alone = False           # whether the only Work may block the process

    def __init__(self, rank_state: Any):
        super().__init__(rank_state)
        self.standing_at: dict = {}     # greenlet of a Work -> the request that it waits for

    def communicator(self, comm: Any) -> Any:
        """`comm` with tags of its own."""
        return comm.with_tags(comm.num_works)

    def poll(self) -> None:
        """Let each Work ask for its request."""
        self.resume_all()

    def finish(self, work: Any) -> None:
        """Block until `work` is done: inside MPI if it is the only one, else polling."""
        process, seen = self.rank_state, None
        process.program = sys._getframe()
        try:
            while not work.done:
                self.alone = self.running == [work]
                self.resume_all()
                request = self.standing_at.get(work.greenlet)
                if request not in (seen, None):     # another wait: the watchdog starts afresh
                    seen, process.waiting = request, (request.description, request.peers)
                if not self.alone:
                    time.sleep(0)       # another process may need this core
        finally:
            self.alone, process.waiting, process.program = False, None, None

    def wait(self, request: Any) -> None:
        """Block until `request` is done; called by MPIRequest.wait while there are Works."""
        if self.is_inside():
            here = getcurrent()
            self.standing_at[here] = request
            while not request.test():
                request.block() if self.alone else pause()
            del self.standing_at[here]
            return
        with self.rank_state.wait_for(request.description, request.peers):
            while not request.test():
                self.resume_all()
                time.sleep(0)
