"""The progress engine of a rank: it resumes the Works that are under way there.

A wait inside a Work pauses: it switches back to the greenlet that resumed the Work, that of the
program.  When the program itself must wait, it waits until any request is done, its own or that of
one of its Works.  The two worlds do this differently: `simulated/progress.py`, `mpi/progress.py`.
"""

from abc import ABC, abstractmethod
from typing import Any

from greenlet import getcurrent

from .communicator import Communicator


def pause() -> None:
    """Called inside a Work: switch back to the greenlet that resumed it."""
    here: Any = getcurrent()
    here.parent.switch()


class ProgressEngine(ABC):
    """The Works under way on one rank; `rank_state` is the state that its communicators share.

    `rank_state.engine` is None while there are none, so that programs without Works pay nothing.
    """

    def __init__(self, rank_state: Any):
        self.rank_state = rank_state
        self.running: list[Any] = []

    @abstractmethod
    def communicator(self, comm: Communicator) -> Communicator:
        """`comm` with messages of its own, whose waits pause."""

    @abstractmethod
    def poll(self) -> None:
        """Advance all Works as far as they can go now."""

    @abstractmethod
    def finish(self, work: Any) -> None:
        """Block until `work` is done."""

    def remove(self, work: Any) -> None:
        """Forget a Work that is done."""
        self.running.remove(work)
        if not self.running:
            self.rank_state.engine = None

    def is_inside(self) -> bool:
        """True if the caller runs inside one of the Works."""
        here = getcurrent()
        return any(work.greenlet is here for work in self.running)

    def resume_all(self) -> None:
        """Resume each Work once."""
        for work in list(self.running):
            work.resume()


def progress(comm: Communicator) -> None:
    """Advance all Works of this rank as far as they can go now, without blocking."""
    engine = comm.rank_state.engine
    if engine is not None and not engine.is_inside():
        engine.poll()


def unwind(engine: ProgressEngine) -> None:
    """Throw all Works of a rank out of what they wait for: the run is over."""
    for work in list(engine.running):
        work.greenlet.parent = getcurrent()
        try:
            work.greenlet.throw()
        except Exception:               # of a `finally` block that tried to communicate
            continue
    engine.running.clear()
