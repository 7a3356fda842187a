"""A simulated rank, which blocks in virtual time, and a split that ranks are arriving at."""

from contextlib import suppress
from typing import Any

from greenlet import getcurrent, greenlet

from ..communicator import RankState
from ..work import unwind
from .ready import Ready


class Rank(RankState):
    """The state that all communicators of one simulated rank share."""

    __slots__ = ("clock", "port_out", "port_in", "greenlet", "turn", "ready", "waiting", "asked")

    def begin(self, ready: Ready) -> None:
        """Begin a run; `ready` has all ranks that can continue."""
        self.clock = self.port_out = self.port_in = 0.0
        self.ready = ready
        self.greenlet: Any = None
        self.turn: Any = None           # in `ready`
        self.waiting: Any = None        # the request, split or calls waited for; None: computing
        self.engine = None
        self.asked = -1.0               # when this rank last asked whether a request is done
        if self.trace is not None:
            self.trace.clear()
        self.log_to(self.trace)

    def start(self, body: greenlet) -> None:
        """Run `body` as this rank, from time 0."""
        self.greenlet, self.turn = body, (-self.world_rank, body)
        self.ready[0.0].append(self.turn)

    def end(self) -> None:
        """End a run: unwind the rank if it is still blocked."""
        if self.engine is not None:
            unwind(self.engine)
        if self.greenlet is not None and not self.greenlet.dead:
            with suppress(Exception):           # the cause of the end is already on its way
                self.greenlet.throw()
        self.greenlet = self.turn = self.waiting = None     # no cycles: arrays are freed at once

    def block(self, waiting: Any) -> None:
        """Switch to the rank that is next in virtual time, until this one is made ready."""
        if self.engine is not None:
            self.engine.block(waiting)
            return
        self.waiting = waiting
        self.ready.next().switch()
        self.waiting = None                     # else its array would live until the next wait

    def give_way(self) -> None:
        """Let the other ranks run until they have reached this rank's time."""
        self.waiting = None
        self.ready[self.clock].append(self.turn)
        self.ready.next().switch()

    def compute_until(self, time: float) -> None:
        """Advance the clock to `time`.

        Earlier events of other ranks happen first, so that ports serve messages in order of time.
        """
        self.clock = time
        if self.ready.has_before(time, self.world_rank) and getcurrent() is self.greenlet:
            self.give_way()

    def asks_again(self) -> bool:
        """True if this rank asked before at this very time.

        Then it must wait, since virtual time does not pass for a rank that only asks.
        """
        again, self.asked = self.asked == self.clock, self.clock
        return again


class Split:
    """A split() that ranks are arriving at; at the virtual time `ended_at` all have arrived."""

    __slots__ = ("arrived", "groups", "ended_at")

    def __init__(self) -> None:
        self.arrived: list[tuple] = []          # (key, rank, color, Rank)
        self.groups: dict = {}                  # color -> number of its group
        self.ended_at: Any = None

    def __str__(self) -> str:
        return "for split(), which every rank of the communicator must call,"

    def form(self, groups: list[list[int]], world: list[int], ready: Ready) -> None:
        """Append a group for each color, and wake the other ranks."""
        for _, rank, color, _ in sorted(self.arrived, key=lambda a: a[:2]):
            if color is None:
                continue
            if color not in self.groups:
                self.groups[color] = len(groups)
                groups.append([])
            groups[self.groups[color]].append(world[rank])
        self.wake(ready)

    def wake(self, ready: Ready) -> None:
        """All have arrived: wake the other ranks."""
        self.ended_at = max(me.clock for *_, me in self.arrived)
        for *_, me in self.arrived:
            if me.waiting is self:
                ready[self.ended_at].append(me.turn)
