"""The Works under way on one rank: who resumes them, and what their waits do instead of blocking.

A wait inside a Work pauses: it switches back to the greenlet that resumed it, the program's.  When
the program itself must wait, it waits for *any* of the requests that its Works or itself stand at.
On a simulated cluster that is one sleep in virtual time; under MPI it blocks in the library if
there is one Work, and else asks for one request after the other.
"""

import sys
import time
from heapq import heapify, heappop, heappush
from typing import Any

from greenlet import getcurrent

from .communicator import Communicator
from .simulated import SimulatedCommunicator
from .simulated.rank import Rank


def pause() -> None:
    """Called inside a Work: back to whoever resumed it."""
    getcurrent().parent.switch()


class Works:
    """The Works under way on one rank; `me` is what its communicators share.

    `me.works` is None while there are none, so that all else pays nothing for them.
    """

    def __init__(self, me: Any):
        self.me, self.running = me, []

    def remove(self, work: Any) -> None:
        """One is done."""
        self.running.remove(work)
        if not self.running:
            self.me.works = None

    def running_here(self) -> bool:
        """Whether the caller is one of the Works."""
        here = getcurrent()
        return any(work.greenlet is here for work in self.running)

    def resume_all(self) -> None:
        """Each once."""
        for work in list(self.running):
            work.resume()

    def close(self) -> None:
        """The run is over: unwind them."""
        for work in list(self.running):
            work.greenlet.parent = getcurrent()
            try:
                work.greenlet.throw()
            except Exception:           # of a `finally` block that tried to communicate
                continue
        self.running.clear()


class SimulatedWorks(Works):
    """On a simulated cluster, where asking takes no time and waiting is exact."""

    def communicator(self, comm: SimulatedCommunicator) -> SimulatedCommunicator:
        """`comm` with messages of its own, whose waits pause."""
        cluster, key = comm.cluster, (comm.group, comm.num_works)
        if key not in cluster.channels:
            cluster.channels[key] = len(cluster.groups)
            cluster.groups.append(cluster.groups[comm.group])
        return SimulatedCommunicator(cluster, PausingRank(self.me), comm.rank,
                                     cluster.channels[key])

    def poll(self) -> None:
        """Go on with what has happened by now; asked twice at one virtual time, wait for more."""
        me = self.me
        if me.asks_again():
            self.sleep(None)
        else:
            me.give_way()
        self.resume_all()

    def finish(self, work: Any) -> None:
        """Block until this one is done."""
        while not work.done:
            self.sleep(work.rank.waiting_for)
            self.resume_all()

    def block(self, waiting: Any) -> None:
        """Block until `waiting`, a request or split of the program itself, has met its peers."""
        if self.running_here():
            raise RuntimeError("a Work waits on another communicator than its own: it must use "
                               "the one it was given")
        while waiting.done is None and self.running:
            self.sleep(waiting)
            self.resume_all()
        if waiting.done is None:
            self.me.block(waiting)

    def sleep(self, waiting: Any) -> None:
        """Until `waiting` or what any Work waits for is there; the rank's clock is then right."""
        me = self.me
        known = [t for t in (work.rank.ready_at() for work in self.running) if t is not None]
        for work in self.running:
            work.rank.waiting = work.rank.waiting_for
        sleep_until_woken(me, min(known) if known else None, waiting)
        for work in self.running:
            work.rank.waiting = None
        known = [work.rank.ready_at() for work in self.running]
        known.append(waiting.done if waiting is not None else None)
        me.clock = max(me.clock, min(t for t in known if t is not None))


def sleep_until_woken(me: Rank, latest: float | None, waiting: Any) -> None:
    """Let the other ranks go on until virtual time `latest`, or until a message wakes this one.

    `waiting` is what a report of a deadlock will say.
    """
    ready, me.waiting = me.ready, waiting
    if latest is not None:
        heappush(ready, (max(latest, me.clock), me.number, me.greenlet))
    (heappop(ready)[2] if ready else me.hub).switch()
    me.waiting = None
    # Whatever else was to wake this rank must not wake it from its next wait.
    if any(event[2] is me.greenlet for event in ready):
        ready[:] = [event for event in ready if event[2] is not me.greenlet]
        heapify(ready)


class PausingRank:
    """Stands for a simulated Rank inside a Work.  To be at a later time means to pause till then;
    who is to be woken is the greenlet of the rank itself."""

    def __init__(self, me: Any):
        self.me, self.number, self.greenlet = me, me.number, me.greenlet
        self.waiting = None             # while the rank sleeps: the request that may wake it
        self.waiting_for = self.until = None

    def ready_at(self) -> float | None:
        """When this Work can go on; None while nobody knows."""
        return self.until if self.until is not None else getattr(self.waiting_for, "done", None)

    def block(self, waiting: Any) -> None:
        """See Rank."""
        self.waiting_for = waiting
        while waiting.done is None:
            pause()
        self.waiting_for = None

    def give_way(self) -> None:
        """See Rank."""
        self.until = self.me.clock
        pause()
        self.until = None

    def compute_until(self, time: float) -> None:
        """Computation takes the rank's own time."""
        self.me.compute_until(time)

    def asks_again(self) -> bool:
        """See Rank."""
        return self.me.asks_again()

    @property
    def clock(self) -> float:
        """Of the rank itself."""
        return self.me.clock

    @clock.setter
    def clock(self, time: float) -> None:
        self.until = time
        while self.me.clock < time:
            pause()
        self.until = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.me, name)           # trace, messages, ready, hub

    port_in = property(lambda self: self.me.port_in,
                       lambda self, time: setattr(self.me, "port_in", time))
    port_out = property(lambda self: self.me.port_out,
                        lambda self, time: setattr(self.me, "port_out", time))


class ProcessWorks(Works):
    """Under MPI: a Work asks for its request whenever it is resumed."""

    alone = False           # whether the one Work there is may block the process

    def __init__(self, me: Any):
        super().__init__(me)
        self.standing_at: dict = {}     # greenlet of a Work -> the request that it waits for

    def communicator(self, comm: Communicator) -> Communicator:
        """`comm` with tags of its own."""
        return comm.with_tags(comm.num_works)

    def poll(self) -> None:
        """Ask for all."""
        self.resume_all()

    def finish(self, work: Any) -> None:
        """Block until this one is done: in MPI if it is the only one, else asking in turn."""
        watchdog, seen = self.me.watchdog, None
        watchdog.program = sys._getframe()
        try:
            while not work.done:
                self.alone = self.running == [work]
                self.resume_all()
                request = self.standing_at.get(work.greenlet)
                if request not in (seen, None):     # another wait: the watchdog looks afresh
                    seen, watchdog.waiting = request, (request.description, request.peers)
                if not self.alone:
                    time.sleep(0)       # another process may need this core
        finally:
            self.alone, watchdog.waiting, watchdog.program = False, None, None

    def wait(self, request: Any) -> None:
        """How an MPIRequest waits while there are Works."""
        if self.running_here():
            here = getcurrent()
            self.standing_at[here] = request
            while not request.test():
                request.block() if self.alone else pause()
            del self.standing_at[here]
            return
        with self.me.watchdog.watching(request.description, request.peers):
            while not request.test():
                self.resume_all()
                time.sleep(0)
