"""A cluster inside one process: ranks are greenlets, time is virtual, a blocked rank costs nothing.

A message is two requests that meet.  Whoever comes second copies the bytes straight from the
sender's array into the receiver's and says when both are done:

    start = the latest of: send posted, receive posted, sender's port free, receiver's port free
    end   = start + bytes / bandwidth            both are done at end + latency

So a send that nobody receives blocks at any size (*rendezvous*), no message is ever buffered, and
if no rank can go on that is a deadlock, known at once.  With `eager=n`, messages smaller than n
bytes are buffered and their sends are done at once, as MPI libraries do.
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
from .request import Rank, SimulatedRequest, half
from .trace import Trace


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
        self.hub = getcurrent()
        for rank in self.ranks:
            rank.begin(self.hub, self.ready)

    @property
    def trace(self) -> Trace:
        """The events of all ranks in the last run, if it was traced."""
        return Trace.merged(rank.trace for rank in self.ranks if rank.trace is not None)

    def deliver(self, send: SimulatedRequest, dest: Rank, out: Array, posted: float) -> float:
        """Both halves are here: move the bytes into `out`, where `dest` wants them since `posted`.

        Returns when that is done, says so to the sender and makes it ready if it waits.
        """
        source, array = send.rank, send.array
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
        if posted > start:
            start = posted
        if source.port_out > start:
            start = source.port_out
        if dest.port_in > start:
            start = dest.port_in
        source.port_out = dest.port_in = end = start + num_bytes * self.seconds_per_byte
        end += self.latency
        if source.messages is not None:
            source.messages.append(
                (source.number, dest.number, num_bytes, send.label, send.posted, start, end))
        if send.done is None:
            send.done = end
            if source.waiting is send:
                heappush(self.ready, (end, source.number, source.greenlet))
        return end

    def run(self, main: Callable[[Communicator], Any]) -> tuple[list, float]:
        """Run main(comm) on every rank; return (what each returned, seconds of virtual time).

        An exception on one rank ends all and is raised here, with a note that names the rank.
        Raises Deadlock, saying who waits for whom and where, if no rank can go on.
        """
        self._begin()
        results = [None] * self.num_ranks

        def body(rank: Rank) -> None:
            self.hub.switch()               # until all are here: nobody runs ahead of their start
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
                rank.greenlet.switch(rank)      # from here: it inherits its starter's stack depth
                self.ready.append((0.0, rank.number, rank.greenlet))
            while self.ready:
                heappop(self.ready)[2].switch()
            if stuck := [rank for rank in self.ranks if not rank.greenlet.dead]:
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
            rank.greenlet = rank.waiting = None     # no cycles: the arrays are freed at once


class SimulatedCommunicator(Communicator):
    """See Communicator; `group` is its number in `cluster.groups`."""

    def __init__(self, cluster: Cluster, me: Rank, rank: int, group: int):
        self.cluster, self.me, self.rank, self.group = cluster, me, rank, group
        self.size = len(cluster.groups[group])
        self.world_rank = me.number
        self._num_splits, self.label = 0, ""    # set here: found faster than on the class

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
        cluster, me = self.cluster, self.me
        send = half(me, array, self.label)
        if cluster.eager and array.nbytes < cluster.eager:
            send.array, send.done = array.copy(), me.clock
        key = (self.group, self.rank, dest, tag)
        recv = cluster.recvs.pop(key, None)
        if recv is None:
            first = cluster.sends.setdefault(key, send)
            if first is not send:
                first.append(send)
        else:
            if recv.behind is not None:
                cluster.recvs[key] = recv.behind
            other = recv.rank
            recv.done = end = cluster.deliver(send, other, recv.array, recv.posted)
            if other.waiting is recv:
                heappush(cluster.ready, (end, other.number, other.greenlet))
        return send

    def irecv(self, out: Array, source: int, tag: int = 0) -> SimulatedRequest:
        """See Communicator."""
        if not 0 <= source < self.size:
            self.check_peer(source, "source")
        cluster, me = self.cluster, self.me
        recv = half(me, out, self.label)
        key = (self.group, source, self.rank, tag)
        send = cluster.sends.pop(key, None)
        if send is None:
            first = cluster.recvs.setdefault(key, recv)
            if first is not recv:
                first.append(recv)
        else:
            if send.behind is not None:
                cluster.sends[key] = send.behind
            recv.done = cluster.deliver(send, me, out, me.clock)
        return recv

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """See Communicator."""
        send = self.isend(array, dest, tag)
        cluster, me = self.cluster, self.me
        key = (self.group, source, self.rank, tag)
        coming = cluster.sends.pop(key, None)
        if coming is None:
            self.irecv(out, source, tag).wait()
        else:
            if coming.behind is not None:
                cluster.sends[key] = coming.behind
            me.clock = cluster.deliver(coming, me, out, me.clock)
        if send.done is None:
            send.wait()
        elif send.done > me.clock:
            me.clock = send.done

    def split(self, color: int | None, key: int | None = None) -> "SimulatedCommunicator | None":
        """See Communicator."""
        cluster, self._num_splits = self.cluster, self._num_splits + 1
        arrived, groups = cluster.splits.setdefault((self.group, self._num_splits), ([], {}))
        arrived.append((self.rank if key is None else key, self.rank, color, self.me))
        if len(arrived) < self.size:
            self.me.block("for split(), which every rank of the communicator must call,")
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
