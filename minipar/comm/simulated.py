"""A cluster inside one process: ranks are greenlets, time is virtual, a blocked rank costs nothing.

A message is two requests that meet.  Whoever comes second copies the bytes straight from the
sender's array into the receiver's and says when both are done:

    start = the latest of: send posted, receive posted, sender's port free, receiver's port free
    end   = start + bytes / bandwidth            both are done at end + latency

So a send that nobody receives blocks at any size (*rendezvous*), no message is ever buffered, and
if no rank can go on that is a deadlock, known at once.  With `eager=n`, messages smaller than n bytes
are buffered and their sends are done at once, as MPI libraries do.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from ..backend import Array
from .communicator import Communicator
from .deadlock import Closed, Deadlock, describe_stuck
from .trace import Trace


class Rank:
    """What all communicators of one rank share."""

    __slots__ = ("number", "clock", "port_out", "port_in", "greenlet", "waiting", "trace",
                 "messages")

    def __init__(self, number: int, trace: Trace | None):
        self.number = number
        self.log_to(trace)
        self.clock = self.port_out = self.port_in = 0.0
        self.greenlet: greenlet | None = None
        self.waiting: SimulatedRequest | str | None = None

    def log_to(self, trace: Trace | None) -> None:
        """Log events there from now on, or nowhere."""
        self.trace = trace
        self.messages = trace.messages if trace is not None else None


class SimulatedRequest:
    """Half a message.  `done` is the virtual time of its end, None until both halves have met."""

    __slots__ = ("cluster", "rank", "array", "label", "posted", "done", "waiter", "behind")

    def __init__(self, cluster: "Cluster", rank: Rank, array: Array, label: str):
        self.cluster, self.rank, self.array, self.label = cluster, rank, array, label
        self.posted = rank.clock
        self.done = self.waiter = None
        self.behind: SimulatedRequest | None = None     # the next of the same two ranks and tag

    def wait(self) -> None:
        """Block this rank, not the process, until both halves have met."""
        rank = self.rank
        done = self.done
        if done is None:
            self.waiter = rank.greenlet
            rank.waiting = self
            ready = self.cluster.ready      # the rank whose turn it is in virtual time goes on
            (heappop(ready)[2] if ready else self.cluster.hub).switch()
            done = self.done
        if done > rank.clock:
            rank.clock = done

    def test(self) -> bool:
        """Whether it is done by now."""
        return self.done is not None and self.done <= self.rank.clock


class Cluster:
    """`num_ranks` simulated ranks.

    Links: `latency` (seconds) and `bandwidth` (bytes per second) of each message.  Devices:
    `flops_per_second` and `memory_bandwidth` (bytes per second), by which reported work takes
    max(FLOPs / flops_per_second, bytes / memory_bandwidth); with clock="wall" it takes as long as
    it really took.
    """

    def __init__(self, num_ranks: int, *, latency: float = 5e-6, bandwidth: float = 1e10,
                 flops_per_second: float = 1e11, memory_bandwidth: float = 1e11, eager: int = 0,
                 trace: bool = False, clock: str = "model"):
        if num_ranks < 1:
            raise ValueError(f"a cluster has at least 1 rank, not {num_ranks}")
        if clock not in ("model", "wall"):
            raise ValueError(f"clock is 'model' or 'wall', not {clock!r}")
        self.num_ranks, self.latency, self.bandwidth = num_ranks, latency, bandwidth
        self.flops_per_second, self.memory_bandwidth = flops_per_second, memory_bandwidth
        self.eager, self.clock, self.seconds_per_byte = eager, clock, 1 / bandwidth
        self.ranks = [Rank(i, Trace() if trace else None) for i in range(num_ranks)]
        self._begin()

    def _begin(self) -> None:
        self.sends: dict = {}       # (group, source, dest, tag) -> the first request without a peer
        self.recvs: dict = {}
        self.ready: list = []       # heap of (virtual time, rank number, greenlet that may go on)
        self.splits: dict = {}
        self.groups = [list(range(self.num_ranks))]     # world numbers of each group's ranks
        for rank in self.ranks:
            rank.clock = rank.port_out = rank.port_in = 0.0
            rank.greenlet = rank.waiting = None
            if rank.trace is not None:
                rank.trace.clear()

    @property
    def trace(self) -> Trace:
        """The events of all ranks in the last run, if it was traced."""
        return Trace.merged(rank.trace for rank in self.ranks if rank.trace is not None)

    def meet(self, send: SimulatedRequest, recv: SimulatedRequest,
             first: SimulatedRequest) -> None:
        """Both halves are here: move the data, say when it is done, wake who waits for `first`."""
        source, dest, array, out = send.rank, recv.rank, send.array, recv.array
        num_bytes = array.nbytes
        if array.dtype is not out.dtype and array.dtype != out.dtype or out.nbytes != num_bytes:
            raise ValueError(
                f"rank {dest.number} receives into {out.dtype} {out.shape}, but rank "
                f"{source.number} sends {array.dtype} {array.shape}: "
                "sizes and dtypes must be equal")
        try:
            out[...] = array
        except ValueError:              # as many elements, in another shape
            out[...] = array.reshape(out.shape)
        start = send.posted             # comparisons: four times as fast as max()
        if recv.posted > start:
            start = recv.posted
        if source.port_out > start:
            start = source.port_out
        if dest.port_in > start:
            start = dest.port_in
        source.port_out = dest.port_in = end = start + num_bytes * self.seconds_per_byte
        recv.done = end = end + self.latency
        if send.done is None:
            send.done = end
        if source.messages is not None:
            source.messages.append(
                (source.number, dest.number, num_bytes, send.label, send.posted, start, end))
        if first.waiter is not None:
            heappush(self.ready, (end, first.rank.number, first.waiter))

    def run(self, main: Callable[[Communicator], Any]) -> tuple[list, float]:
        """Run main(comm) on every rank; return (what each returned, seconds of virtual time).

        An exception on one rank ends all and is raised here, with a note that names the rank.
        Raises Deadlock, saying who waits for whom and where, if no rank can go on.
        """
        self._begin()
        self.hub, results = getcurrent(), [None] * self.num_ranks

        def body(rank: Rank) -> None:
            try:
                results[rank.number] = main(SimulatedCommunicator(self, rank, rank.number, 0))
            except Exception as error:
                error.add_note(f"on rank {rank.number} of {self.num_ranks} simulated ranks")
                raise

        collecting = gc.isenabled()
        gc.disable()                # thousands of live requests would be scanned again and again
        try:
            for rank in self.ranks:
                rank.greenlet = greenlet(body)
                rank.greenlet.gr_context = copy_context()   # context variables of its own
                rank.greenlet.switch(rank)                  # from here, not from another rank: it
            while self.ready:                               # inherits its starter's stack depth
                heappop(self.ready)[2].switch()
            stuck = [rank for rank in self.ranks if not rank.greenlet.dead]
            if stuck:
                raise Deadlock(describe_stuck(stuck, self))
        finally:
            self._end()
            if collecting:
                gc.enable()
        return results, max(rank.clock for rank in self.ranks)

    def _end(self) -> None:
        """Unwind the ranks that are still blocked; their `finally` blocks can send no more."""
        self.sends = self.recvs = self.splits = Closed()
        for rank in self.ranks:
            if rank.greenlet is not None and not rank.greenlet.dead:
                with suppress(Exception):       # the cause of the end is already on its way
                    rank.greenlet.throw()


class SimulatedCommunicator(Communicator):
    """See Communicator; `group` is its number in `cluster.groups`."""

    def __init__(self, cluster: Cluster, me: Rank, rank: int, group: int):
        self.cluster, self.me, self.rank, self.group = cluster, me, rank, group
        self.size = len(cluster.groups[group])
        self.world_rank = me.number
        self._num_splits = 0

    def now(self) -> float:
        """Virtual seconds."""
        return self.me.clock

    def work(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Advance this rank's clock by what the work takes on the cluster's device."""
        cluster, start = self.cluster, self.me.clock
        if cluster.clock == "model":
            seconds = max(flops / cluster.flops_per_second, num_bytes / cluster.memory_bandwidth)
        self.me.clock = start + seconds
        if self.trace is not None:
            self.trace.spans.append((self.me.number, name, start, self.me.clock))

    def isend(self, array: Array, dest: int, tag: int = 0) -> SimulatedRequest:
        """See Communicator."""
        if not 0 <= dest < self.size:
            self.check_peer(dest, "dest")
        cluster = self.cluster
        send = SimulatedRequest(cluster, self.me, array, self.label)
        if array.nbytes < cluster.eager:
            send.array, send.done = array.copy(), self.me.clock
        key = (self.group, self.rank, dest, tag)
        recv = cluster.recvs.pop(key, None)
        if recv is None:
            _queue(cluster.sends, key, send)
        else:
            if recv.behind is not None:
                cluster.recvs[key] = recv.behind
            cluster.meet(send, recv, recv)
        return send

    def irecv(self, out: Array, source: int, tag: int = 0) -> SimulatedRequest:
        """See Communicator."""
        if not 0 <= source < self.size:
            self.check_peer(source, "source")
        cluster = self.cluster
        recv = SimulatedRequest(cluster, self.me, out, self.label)
        key = (self.group, source, self.rank, tag)
        send = cluster.sends.pop(key, None)
        if send is None:
            _queue(cluster.recvs, key, recv)
        else:
            if send.behind is not None:
                cluster.sends[key] = send.behind
            cluster.meet(send, recv, send)
        return recv

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """See Communicator."""
        send, recv = self.isend(array, dest, tag), self.irecv(out, source, tag)
        recv.wait()
        send.wait()

    def split(self, color: int | None, key: int | None = None) -> "SimulatedCommunicator | None":
        """See Communicator."""
        cluster, self._num_splits = self.cluster, self._num_splits + 1
        meeting = cluster.splits.setdefault((self.group, self._num_splits), ([], {}))
        arrived, groups = meeting
        arrived.append((self.rank if key is None else key, self.rank, color, self.me))
        if len(arrived) < self.size:
            self.me.waiting = "split(), which every rank of the communicator must call"
            (heappop(cluster.ready)[2] if cluster.ready else cluster.hub).switch()
        else:                           # the last to arrive forms the groups and wakes the others
            world = cluster.groups[self.group]
            for _, rank, group_color, _ in sorted(arrived, key=lambda a: a[:2]):
                if group_color is not None and group_color not in groups:
                    groups[group_color] = len(cluster.groups)
                    cluster.groups.append([])
                if group_color is not None:
                    cluster.groups[groups[group_color]].append(world[rank])
            latest = max(me.clock for *_, me in arrived)
            for *_, me in arrived:
                me.clock = latest
                if me is not self.me:
                    heappush(cluster.ready, (latest, me.number, me.greenlet))
        if color is None:
            return None
        group = groups[color]
        rank = cluster.groups[group].index(self.me.number)
        return SimulatedCommunicator(cluster, self.me, rank, group)


def _queue(requests: dict, key: tuple, request: SimulatedRequest) -> None:
    """Append to the requests of the same two ranks and tag that wait for their other half."""
    first = requests.setdefault(key, request)
    if first is not request:
        while first.behind is not None:
            first = first.behind
        first.behind = request

