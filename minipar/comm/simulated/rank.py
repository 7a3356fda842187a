"""One simulated rank, and half a message: what the two halves of a rendezvous are made of."""

from contextlib import suppress
from heapq import heappop, heappush
from math import inf

from greenlet import getcurrent, greenlet

from ...backend import Array
from ..trace import POLL, Trace


def count_ranks(num_ranks: int | None, nodes: int | None,
                devices_per_node: int | None) -> tuple[int, int]:
    """(ranks, devices per node) of a cluster from what was said of it; one node by default."""
    if num_ranks is None:
        num_ranks = (nodes or 1) * (devices_per_node or 1)
    if num_ranks < 1:
        raise ValueError(f"a cluster has at least 1 rank, not {num_ranks}")
    if devices_per_node is None:
        devices_per_node = max(1, num_ranks // (nodes or 1))
    if num_ranks != (nodes or num_ranks // devices_per_node) * devices_per_node:
        raise ValueError(f"{num_ranks} ranks do not fill {nodes or 'whole'} nodes of "
                         f"{devices_per_node} devices: choose Cluster(nodes=n, "
                         "devices_per_node=d), which has n * d ranks")
    return num_ranks, devices_per_node


class Rank:
    """What all communicators of one rank share."""

    __slots__ = ("number", "clock", "port_out", "port_in", "greenlet", "hub", "ready", "waiting",
                 "engine", "asked", "slowness", "lost_at", "trace", "messages", "actions")

    def __init__(self, number: int, trace: Trace | None):
        self.number = number
        self.log_to(trace)

    def begin(self, hub: greenlet, ready: list) -> None:
        """At the start of a run: `ready` is the heap of all ranks that may go on."""
        self.clock = self.port_out = self.port_in = 0.0
        self.slowness, self.lost_at = 1.0, inf          # see faults.py
        self.hub, self.ready = hub, ready
        self.greenlet: greenlet | None = None
        self.waiting: SimulatedRequest | Split | None = None    # for what, None: it computes
        self.engine = None       # the non-blocking collectives under way, if any (see work.py)
        self.asked = -1.0       # when this rank last asked whether something is done
        if self.trace is not None:
            self.trace.clear()
        self.log_to(self.trace)

    def end(self) -> None:
        """At the end of a run: unwind what is still blocked."""
        if self.engine is not None:
            self.engine.close()
        if self.greenlet is not None and not self.greenlet.dead:
            with suppress(Exception):           # the cause of the end is already on its way
                self.greenlet.throw()
        self.greenlet = self.waiting = None     # no cycles: the arrays are freed at once

    def start_trace(self, group: int, replay: bool) -> None:
        """Log from now on; with `replay` also the program, which begins in `group`."""
        self.log_to(Trace(programs={self.number: [("world", group)]} if replay else {}))

    def log_to(self, trace: Trace | None) -> None:
        """Log events there from now on, or nowhere."""
        self.trace = trace
        self.messages = trace.messages if trace is not None else None
        self.actions = trace.programs.get(self.number) if trace is not None else None

    def block(self, waiting: "SimulatedRequest | Split") -> None:
        """Let the rank whose turn it is in virtual time go on, until this one is made ready."""
        if self.engine is not None:
            self.engine.block(waiting)
            return
        self.waiting = waiting
        (heappop(self.ready)[2] if self.ready else self.hub).switch()
        self.waiting = None                     # else its array would live until the next wait

    def give_way(self) -> None:
        """Let the others catch up: whatever happens before this rank's now has then happened."""
        self.waiting = None
        heappush(self.ready, (self.clock, self.number, self.greenlet))
        heappop(self.ready)[2].switch()

    def compute_until(self, time: float) -> None:
        """Spend time; what others do meanwhile happens first, so that ports serve in true order."""
        self.clock = time
        if self.ready and self.ready[0] < (time, self.number) and getcurrent() is self.greenlet:
            self.give_way()

    def asks_again(self) -> bool:
        """Whether this rank asked before at this very time: then asking must end in waiting,
        since virtual time passes for nobody who only asks."""
        again, self.asked = self.asked == self.clock, self.clock
        return again


class SimulatedRequest:
    """Half a message.  `done` is the virtual time of its end, None until both halves have met."""

    __slots__ = ("rank", "array", "label", "posted", "done", "behind", "number")

    def __init__(self, rank: Rank, array: Array, label: str):
        self.rank, self.array, self.label, self.posted = rank, array, label, rank.clock
        self.done: float | None = None
        self.behind: SimulatedRequest | None = None     # the next of the same two ranks and tag
        self.number: int | None = None                  # in its rank's program, if that is logged

    def stand_in_line(self, queue: dict, key: tuple) -> None:
        """Wait in `queue` for the other half, behind earlier requests of the same key."""
        request = queue.setdefault(key, self)
        if request is not self:
            while request.behind is not None:
                request = request.behind
            request.behind = self

    def finish(self, end: float) -> None:
        """Both halves have met, and are done at `end`: the rank may go on if it waits for this."""
        self.done, rank = end, self.rank
        if rank.waiting is self:
            heappush(rank.ready, (end, rank.number, rank.greenlet))

    def wait(self) -> None:
        """Block this rank, not the process, until both halves have met."""
        if self.rank.actions is not None:
            self.rank.actions.append(("wait", self.number))
        if self.done is None:
            self.rank.block(self)
        if self.done > self.rank.clock:
            self.rank.clock = self.done

    def test(self) -> bool:
        """Whether it is done by now.  Asked twice at one virtual time, it waits."""
        rank = self.rank
        if rank.actions is not None:
            rank.actions.append(POLL)
        if self.done is None or self.done > rank.clock:
            if rank.asks_again():
                self.wait()
            else:
                rank.give_way()
        return self.peek()

    def peek(self) -> bool:
        """See Request."""
        return self.done is not None and self.done <= self.rank.clock


def misfit(source: Rank, array: Array, dest: Rank, out: Array) -> ValueError:
    """The error of a receive that is not made for its message."""
    return ValueError(f"rank {dest.number} receives into {out.dtype} {out.shape}, but rank "
                      f"{source.number} sends {array.dtype} {array.shape}: sizes and dtypes must "
                      "be equal")


class Calls(list):
    """What the ranks of a communicator called as their n-th collective (see agreement.py).

    A rank whose call does not fit the first one waits here for ever.
    """

    num_ranks, differ, done = 0, False, None

    def __str__(self) -> str:
        return "for the other ranks to call the same collective"


class Split:
    """A split() that ranks are arriving at; `done` is the virtual time when all were there."""

    __slots__ = ("arrived", "groups", "done")

    def __init__(self):
        self.arrived: list[tuple] = []          # (key, rank, color, Rank)
        self.groups: dict = {}                  # color -> number of its group
        self.done: float | None = None

    def __str__(self) -> str:
        return "for split(), which every rank of the communicator must call,"

    def form(self, groups: list[list[int]], world: list[int], ready: list) -> None:
        """The last one is here: append a group for each colour, wake the others."""
        for _, rank, color, _ in sorted(self.arrived, key=lambda a: a[:2]):
            if color is None:
                continue
            if color not in self.groups:
                self.groups[color] = len(groups)
                groups.append([])
            groups[self.groups[color]].append(world[rank])
        self.done = max(me.clock for *_, me in self.arrived)
        for *_, me in self.arrived:
            if me.waiting is self:
                heappush(ready, (self.done, me.number, me.greenlet))
