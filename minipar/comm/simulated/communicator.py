"""The communicator of a simulated rank, in virtual time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backend import Array
from ..communicator import Communicator, Labelled, Request, some_of
from ..errors import NUM_TAGS, check_message
from .matching import SimulatedRequest, take
from .progress import SimulatedProgressEngine, wait_any
from .rank import Rank, Split


class SimulatedCommunicator(Communicator):
    """A Communicator in virtual time; `group` is its index in `cluster.groups`."""

    is_simulated = True
    rank_state: Rank
    started = "an unknown line"     # of a Work: the line of the program that started it

    def __init__(self, cluster: Any, me: Rank, rank: int, group: int):
        self.cluster, self.rank_state, self.rank, self.group = cluster, me, rank, group
        self.size = len(cluster.groups[group])
        self.world_rank = me.world_rank
        self.num_calls, self.label = 0, ""     # set here: found faster than on the class
        # `sendrecv` returns with both done, so all its calls can use the same two requests
        self.sending = SimulatedRequest(me, None, "")
        self.receiving = SimulatedRequest(me, None, "")

    def channel(self, me: Any, index: int) -> "SimulatedCommunicator":
        """A group of the same ranks, whose messages never meet those of another `index`.

        `me` stands for this rank there.
        """
        cluster, key = self.cluster, (self.group, index)
        if key not in cluster.channels:
            cluster.channels[key] = len(cluster.groups)
            cluster.groups.append(cluster.groups[self.group])
        return SimulatedCommunicator(cluster, me, self.rank, cluster.channels[key])

    def make_progress_engine(self) -> Any:
        """An engine for the Works (non-blocking collectives) of this rank."""
        return SimulatedProgressEngine(self.rank_state)

    def wait_any(self, requests: Sequence[Request | None]) -> int:
        """Block until one of the requests is done; return the index of the earliest."""
        return wait_any(some_of(requests))

    def choose(self, operation: str, num_bytes: int) -> str | None:
        """The choice of the cluster's chooser, made once for all ranks of the group."""
        cluster = self.cluster
        if cluster.chooser is None:
            return None
        # The channels of non-blocking collectives have the list of their communicator's ranks.
        key = id(cluster.groups[self.group])
        if key not in cluster.choices:
            cluster.choices[key] = cluster.chooser(self)
        return cluster.choices[key](operation, num_bytes)

    def node_of(self, rank: int) -> int:
        """The number of the node of `rank`."""
        return self.world_rank_of(rank) // self.cluster.devices_per_node

    def world_rank_of(self, rank: int) -> int:
        """The number of `rank` in the whole world."""
        return self.cluster.groups[self.group][rank]

    def now(self) -> float:
        """Virtual seconds."""
        return self.rank_state.clock

    def report_compute(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Advance this rank's clock by what the work takes on the cluster's device."""
        cluster = self.cluster
        if cluster.clock == "model":
            seconds = max(flops / cluster.flops_per_second, num_bytes / cluster.memory_bandwidth)
        self.spend(name, seconds)

    def spend(self, name: str, seconds: float) -> None:
        """Compute for `seconds`."""
        me, start = self.rank_state, self.rank_state.clock
        end = start + seconds
        if me.trace is not None:
            me.trace.spans.append((me.world_rank, name, start, end))
            me.log("compute", name, seconds)
        me.compute_until(end)

    def isend(self, array: Array, dest: int, tag: int = 0) -> SimulatedRequest:
        """Begin to send `array`; if the receive is waiting already, deliver it."""
        if not (type(array) is np.ndarray and 0 <= dest < self.size and 0 <= tag < NUM_TAGS):
            check_message(self, array, dest, "dest", tag)
        cluster, me = self.cluster, self.rank_state
        send = SimulatedRequest(me, array, self.label)
        if cluster.eager and array.nbytes < cluster.eager:
            send.array, send.ended_at = array.copy(), me.clock
        key = (self.group, self.rank, dest, tag)
        if me.actions is not None:
            send.action = me.log("send", self.group, tag, dest, array.nbytes)
        recv = take(cluster.recvs, key)
        if recv is None:
            send.stand_in_line(cluster.sends, key)
        else:
            end = cluster.deliver(me, array, self.label, send.posted, recv.rank, recv.array,
                                  recv.posted)
            if send.ended_at is None:
                send.ended_at = end
            recv.finish(end)
        return send

    def irecv(self, out: Array, source: int, tag: int = 0) -> SimulatedRequest:
        """Begin to receive into `out`; if the send is waiting already, deliver it."""
        if not (type(out) is np.ndarray and 0 <= source < self.size and 0 <= tag < NUM_TAGS):
            check_message(self, out, source, "source", tag)
        cluster, me = self.cluster, self.rank_state
        recv = SimulatedRequest(me, out, self.label)
        key = (self.group, source, self.rank, tag)
        if me.actions is not None:
            recv.action = me.log("recv", self.group, tag, source, out.nbytes)
        send = take(cluster.sends, key)
        if send is None:
            recv.stand_in_line(cluster.recvs, key)
        else:
            recv.ended_at = end = cluster.deliver(send.rank, send.array, send.label, send.posted,
                                                  me, out, recv.posted)
            if send.ended_at is None:
                send.finish(end)
        return recv

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Exchange.  Most messages go this way, so it avoids work.

        A half that finds its other half waiting needs no request, and `take` is written out: its
        calls would cost 5 %.
        """
        cluster, me = self.cluster, self.rank_state
        if not (type(array) is type(out) is np.ndarray
                and 0 <= dest < self.size and 0 <= source < self.size and 0 <= tag < NUM_TAGS):
            check_message(self, array, dest, "dest", tag)
            check_message(self, out, source, "source", tag)
        if me.actions is not None or cluster.eager:
            sending, receiving = self.isend(array, dest, tag), self.irecv(out, source, tag)
            receiving.wait()
            sending.wait()
            return
        posted, send, label = me.clock, None, self.label
        key = self.group, self.rank, dest, tag
        recv = cluster.recvs.pop(key, None)
        if recv is None:
            send = self.sending.renew(array, label, posted)
            send.stand_in_line(cluster.sends, key)
        else:
            if recv.behind is not None:
                cluster.recvs[key] = recv.behind
            sent = cluster.deliver(me, array, label, posted, recv.rank, recv.array, recv.posted)
            recv.finish(sent)
            recv = None                     # its array is the peer's to free, from now on
        key = self.group, source, self.rank, tag
        coming = cluster.sends.pop(key, None)
        if coming is None:
            recv = self.receiving.renew(out, label, posted)
            recv.stand_in_line(cluster.recvs, key)
            me.block(recv)
            if recv.ended_at > me.clock:
                me.clock = recv.ended_at
            recv.array = None               # done: not kept while the send waits
        else:
            if coming.behind is not None:
                cluster.sends[key] = coming.behind
            end = cluster.deliver(coming.rank, coming.array, coming.label, coming.posted, me, out,
                                  posted)
            coming.finish(end)
            coming = None                   # nor may anything here keep this one's array
            me.clock = end
        if send is not None:
            if send.ended_at is None:
                me.block(send)
            sent, send.array = send.ended_at, None
        if sent > me.clock:
            me.clock = sent

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> Labelled:
        """Context of a collective.  A rank whose call differs stops here, and so do later ranks."""
        self.num_calls += 1
        if self.cluster.compare is not None and self.size > 1:
            self.cluster.compare(self, operation, array, uneven, options)
        return Labelled(self, operation + self.axes)

    def split(self, color: int | None, key: int | None = None) -> "SimulatedCommunicator | None":
        """Collective.  A communicator of the ranks with this rank's `color`."""
        self.collective("split")
        cluster, me = self.cluster, self.rank_state
        split = cluster.splits.setdefault((self.group, self.num_calls), Split())
        split.arrived.append((self.rank if key is None else key, self.rank, color, me))
        if len(split.arrived) == self.size:
            split.form(cluster.groups, cluster.groups[self.group], cluster.ready)
        else:
            me.block(split)
        if split.ended_at > me.clock:
            me.clock = split.ended_at
        group = None if color is None else split.groups[color]
        me.log("split", self.group, color, key, group)
        if group is None:
            return None
        return SimulatedCommunicator(cluster, me, cluster.groups[group].index(me.world_rank), group)
