"""One simulated rank, and half a message: what the two halves of a rendezvous are made of."""

from heapq import heappop

from greenlet import greenlet

from ..backend import Array
from .trace import Trace


class Rank:
    """What all communicators of one rank share."""

    __slots__ = ("number", "clock", "port_out", "port_in", "greenlet", "hub", "ready", "waiting",
                 "trace", "messages")

    def __init__(self, number: int, trace: Trace | None):
        self.number = number
        self.log_to(trace)

    def begin(self, hub: greenlet, ready: list) -> None:
        """At the start of a run: `ready` is the heap of all ranks that may go on."""
        self.clock = self.port_out = self.port_in = 0.0
        self.hub, self.ready = hub, ready
        self.greenlet: greenlet | None = None
        self.waiting: SimulatedRequest | str | None = None      # for what, or for what last
        if self.trace is not None:
            self.trace.clear()

    def log_to(self, trace: Trace | None) -> None:
        """Log events there from now on, or nowhere."""
        self.trace = trace
        self.messages = trace.messages if trace is not None else None

    def block(self, waiting: "SimulatedRequest | str") -> None:
        """Let the rank whose turn it is in virtual time go on, until this one is made ready."""
        self.waiting = waiting
        (heappop(self.ready)[2] if self.ready else self.hub).switch()


class SimulatedRequest:
    """Half a message, made by `half`.  (No __init__: that would take as long again.)"""

    __slots__ = ("rank", "array", "label", "posted", "done", "behind")

    rank: Rank
    array: Array
    label: str
    posted: float                           # the rank's clock when it asked
    done: float | None                      # the time of its end; None until both halves have met
    behind: "SimulatedRequest | None"       # the next of the same two ranks and tag

    def append(self, last: "SimulatedRequest") -> None:
        """Stand `last` in line behind this request."""
        request = self
        while request.behind is not None:
            request = request.behind
        request.behind = last

    def wait(self) -> None:
        """Block this rank, not the process, until both halves have met."""
        if self.done is None:
            self.rank.block(self)
        if self.done > self.rank.clock:
            self.rank.clock = self.done

    def test(self) -> bool:
        """Whether it is done by now."""
        return self.done is not None and self.done <= self.rank.clock


def half(rank: Rank, array: Array, label: str) -> SimulatedRequest:
    """What `rank` sends or receives, from now on."""
    request = SimulatedRequest()
    request.rank, request.array, request.label, request.posted = rank, array, label, rank.clock
    request.done = request.behind = None
    return request
