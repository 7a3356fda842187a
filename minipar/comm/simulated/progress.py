"""The progress engine of a simulated rank, where asking takes no time and waiting is exact.

While the program waits, the rank sleeps in virtual time.  It wakes at the earliest event that the
program or one of its Works (non-blocking collectives) waits for.  Then it resumes its Works, and
sleeps again if need be.
"""

from collections.abc import Sequence
from typing import Any

from ..trace import POLL
from ..work import ProgressEngine, pause
from .rank import Rank


class SimulatedProgressEngine(ProgressEngine):
    """The Works of one simulated rank."""

    def communicator(self, comm: Any) -> Any:
        """`comm` with messages of its own, whose waits pause."""
        return comm.channel(PausingRank(self.rank_state), comm.num_works)

    def poll(self) -> None:
        """Advance the Works by all that has happened so far.

        The second call at one virtual time waits for the next event: else time would stand still.
        """
        me = self.rank_state
        if me.asks_again():
            self.sleep(None)
        else:
            me.give_way()
        self.resume_all()

    def finish(self, work: Any) -> None:
        """Block until `work` is done."""
        while not work.done:
            self.sleep(work.rank_state.waiting_for)
            self.resume_all()

    def block(self, waiting: Any) -> None:
        """Block until `waiting`, a request or split of the program itself, has met its peers."""
        if self.is_inside():
            raise RuntimeError("a Work waits on another communicator than its own: it must use "
                               "the one it was given")
        while waiting.ended_at is None and self.running:
            self.sleep(waiting)
            self.resume_all()
        if waiting.ended_at is None:
            self.rank_state.block(waiting)

    def sleep(self, waiting: Any) -> None:
        """Sleep until `waiting`, or what any Work waits for, is done; set the rank's clock."""
        me = self.rank_state
        known = [t for t in (work.rank_state.ready_at() for work in self.running) if t is not None]
        if waiting is not None and waiting.ended_at is not None:
            known.append(waiting.ended_at)
        for work in self.running:
            work.rank_state.waiting = work.rank_state.waiting_for
        sleep_until_woken(me, min(known) if known else None, waiting)
        for work in self.running:
            work.rank_state.waiting = None
        times = [work.rank_state.ready_at() for work in self.running]
        times.append(waiting.ended_at if waiting is not None else None)
        me.clock = max(me.clock, min(t for t in times if t is not None))


def sleep_until_woken(me: Rank, latest: float | None, waiting: Any) -> None:
    """Let the other ranks run until virtual time `latest`, or until a message wakes this one.

    The report of a deadlock names `waiting`.
    """
    ready, me.waiting = me.ready, waiting
    if latest is not None:
        ready[max(latest, me.clock)].append(me.turn)
    ready.next().switch()
    me.waiting = None
    ready.remove(me.turn)       # what else was to wake it must not wake it from its next wait


class PausingRank:
    """Stands for a simulated Rank inside a Work.

    Setting the clock to a later time pauses the Work until then.  A message wakes the greenlet of
    the rank, which then resumes its Works.
    """

    def __init__(self, me: Any):
        self.rank_state, self.world_rank, self.turn = me, me.world_rank, me.turn
        self.waiting: Any = None        # while the rank sleeps: the request that may wake it
        self.waiting_for: Any = None    # what the Work waits for: a request or split …
        self.until: float | None = None     # … or a time

    def ready_at(self) -> float | None:
        """The time at which this Work can continue, or None while it is unknown."""
        if self.until is not None or self.waiting_for is None:
            return self.until
        return self.waiting_for.ended_at

    def block(self, waiting: Any) -> None:
        """Pause until `waiting` has met its peers."""
        self.waiting_for = waiting
        while waiting.ended_at is None:
            pause()
        self.waiting_for = None

    def give_way(self) -> None:
        """Pause until the other ranks have caught up."""
        self.until = self.rank_state.clock
        pause()
        self.until = None

    def compute_until(self, time: float) -> None:
        """Spend the rank's own time."""
        self.rank_state.compute_until(time)

    def asks_again(self) -> bool:
        """True if this rank asked before at this very time."""
        return self.rank_state.asks_again()

    @property
    def clock(self) -> float:
        """The clock of the rank itself."""
        return self.rank_state.clock

    @clock.setter
    def clock(self, time: float) -> None:
        self.until = time
        while self.rank_state.clock < time:
            pause()
        self.until = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rank_state, name)           # trace, messages, ready

    port_in = property(lambda self: self.rank_state.port_in,
                       lambda self, time: setattr(self.rank_state, "port_in", time))
    port_out = property(lambda self: self.rank_state.port_out,
                        lambda self, time: setattr(self.rank_state, "port_out", time))


def wait_any(live: Sequence[tuple[int, Any]]) -> int:
    """Block until one of the (index, request) pairs is done; return the earliest one's index."""
    me = live[0][1].rank
    me.log(*POLL)
    for _, request in live:         # each gets a stand-in that waits for it alone
        request.rank = PausingRank(me)
        request.rank.waiting = request
    try:
        times = [request.ended_at for _, request in live if request.ended_at is not None]
        sleep_until_woken(me, min(times) if times else None, live[0][1])
    finally:
        for _, request in live:
            request.rank = me
    end, first = min((request.ended_at, i) for i, request in live if request.ended_at is not None)
    me.clock = max(me.clock, end)
    return first
