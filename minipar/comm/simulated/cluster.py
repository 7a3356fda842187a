"""A cluster in one process: ranks are greenlets, time is virtual, a blocked rank costs nothing.

A send blocks at any size until it is received (matching.py).  If no rank can continue, that is a
deadlock, reported at once.  With `eager=n`, messages smaller than n bytes are buffered and their
sends are done at once, as in MPI libraries.
"""

import gc
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from greenlet import getcurrent, greenlet

from ..communicator import Choose, Chooser, Communicator
from ..trace import Trace
from .communicator import SimulatedCommunicator
from .deadlock import raise_cause
from .links import Links, count_ranks
from .matching import deliver
from .mismatch import compare
from .rank import Rank
from .ready import Ready


def by_model(comm: Communicator) -> Choose:
    """The default chooser: the algorithm that the cost model finds fastest on the links."""
    from ..cost.choose import model_choice
    return model_choice(comm)


class Closed(dict):
    """Takes the place of the queues when the run is over: messages and collectives then fail."""

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("this run is over: its communicators can no longer be used")

    get = pop = setdefault = __setitem__ = _refuse


class Cluster:
    """`num_ranks` simulated ranks, or `nodes` times `devices_per_node`.

    Links: `latency` (seconds) and `bandwidth` (bytes per second) of each message, or `links`
    (links.py).  Devices have `flops_per_second` and `memory_bandwidth` (bytes per second): reported
    work takes max(FLOPs / flops_per_second, bytes / memory_bandwidth).  With clock="wall" it takes
    as long as it really took.  `trace`: True logs messages and computation, "replay" also the
    programs that replay.py needs.  `chooser`: decides which algorithm "auto" means; None means the
    first one of each operation.  `compare_calls`: all ranks' calls of a collective are compared
    (mismatch.py), which takes a little time.
    """

    def __init__(self, num_ranks: int | None = None, *, nodes: int | None = None,
                 devices_per_node: int | None = None, latency: float = 5e-6,
                 bandwidth: float = 1e10, flops_per_second: float = 1e11,
                 memory_bandwidth: float = 1e11, eager: int = 0, trace: bool | str = False,
                 clock: str = "model", links: Links | None = None,
                 chooser: Chooser | None = by_model, compare_calls: bool = True):
        if num_ranks is None or num_ranks < 1 or nodes or devices_per_node:
            num_ranks, devices_per_node = count_ranks(num_ranks, nodes, devices_per_node)
        if clock not in ("model", "wall"):
            raise ValueError(f"clock is 'model' or 'wall', not {clock!r}")
        if trace not in (False, True, "replay"):
            raise ValueError(f"trace is False, True or 'replay', not {trace!r}")
        self.num_ranks, self.devices_per_node = num_ranks, devices_per_node or num_ranks
        self.latency, self.bandwidth = latency, bandwidth
        self.flops_per_second, self.memory_bandwidth = flops_per_second, memory_bandwidth
        self.eager, self.clock, self.seconds_per_byte = eager, clock, 1 / bandwidth
        self.links = links
        self.chooser, self.compare = chooser, compare if compare_calls else None
        self.ranks = [Rank(i, Trace(programs={i: []} if trace == "replay" else {}) if trace
                           else None) for i in range(num_ranks)]
        self._begin()

    def _begin(self) -> None:
        # (group, source, dest, tag) -> the first request whose other half has not been posted
        self.sends: dict = {}
        self.recvs: dict = {}
        self.splits: dict = {}      # (group, n) -> its n-th split(), until all ranks are there
        self.calls: dict = {}       # (group, n) -> its n-th collective, until all ranks called it
        self.groups = [list(range(self.num_ranks))]     # world numbers of each group's ranks
        self.channels: dict = {}    # (group, n) -> group of its n-th non-blocking collective
        self.choices: dict = {}     # by group: what the chooser returned for it
        self.hub = getcurrent()
        self.ready = Ready(self.hub)
        for rank in self.ranks:
            rank.begin(self.ready)
        if self.links is not None:
            self.links.begin(self)

    @property
    def trace(self) -> Trace:
        """The events of all ranks in the last run, if it was traced."""
        return Trace.merged(rank.trace for rank in self.ranks if rank.trace is not None)

    def communicator(self, me: Rank) -> SimulatedCommunicator:
        """The world of a rank."""
        return SimulatedCommunicator(self, me, me.world_rank, 0)

    deliver = deliver

    def run(self, main: Callable[[Any], Any]) -> tuple[list, float]:
        """Run main(comm) on every rank; return (what each returned, seconds of virtual time).

        An exception on one rank ends all ranks and is raised here, with a note that names the rank.
        Raises Deadlock, with a line for each waiting rank, if no rank can continue, and
        CollectiveMismatch if ranks call different collectives.
        """
        self._begin()
        results = [None] * self.num_ranks

        def body(me: Rank) -> None:
            self.hub.switch()               # until all ranks have been started
            try:
                results[me.world_rank] = main(self.communicator(me))
            except Exception as error:
                error.add_note(f"on rank {me.world_rank} of {self.num_ranks} simulated ranks")
                raise

        collecting = gc.isenabled()
        gc.disable()                # thousands of live requests would be scanned again and again
        try:
            for rank in self.ranks:
                rank.start(greenlet(body))
                rank.greenlet.gr_context = copy_context()   # context variables of its own
                rank.greenlet.switch(rank)      # from here: it inherits its starter's stack depth
            while (first := self.ready.next()) is not self.hub:
                first.switch()
            stuck = [rank for rank in self.ranks if not rank.greenlet.dead]
            if stuck or self.calls:
                raise_cause(stuck, self)
        finally:
            self._end()
            if collecting:
                gc.enable()
        return results, max(rank.clock for rank in self.ranks)

    def _end(self) -> None:
        """Unwind the ranks that are still blocked; their `finally` blocks can no longer send."""
        self.sends = self.recvs = self.splits = self.calls = Closed()
        for rank in self.ranks:
            rank.end()
