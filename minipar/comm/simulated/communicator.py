"""What one simulated rank holds: the two halves of each message meet here (see `simulated.py`)."""

import sys
from typing import Any

from ...backend import Array
from ..agreement import add_call, arguments_of
from ..communicator import Communicator, Labelled
from .deadlock import source_line
from .rank import Calls, Rank, SimulatedRequest, Split


class SimulatedCommunicator(Communicator):
    """See Communicator; `group` is its number in `cluster.groups`."""

    started = "an unknown line"     # where the function was started that uses it (see work.py)

    def __init__(self, cluster: Any, me: Rank, rank: int, group: int):
        self.cluster, self.me, self.rank, self.group = cluster, me, rank, group
        self.size = len(cluster.groups[group])
        self.world_rank = me.number
        self._num_calls, self.label = 0, ""     # set here: found faster than on the class

    def node_of(self, rank: int) -> int:
        """See Communicator."""
        return self.world_rank_of(rank) // self.cluster.devices_per_node

    def world_rank_of(self, rank: int) -> int:
        """See Communicator."""
        return self.cluster.groups[self.group][rank]

    def now(self) -> float:
        """Virtual seconds."""
        return self.me.clock

    def work(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Advance this rank's clock by what the work takes on the cluster's device."""
        cluster = self.cluster
        if cluster.clock == "model":
            seconds = max(flops / cluster.flops_per_second, num_bytes / cluster.memory_bandwidth)
        self.spend(name, seconds)

    def spend(self, name: str, seconds: float) -> None:
        """Compute for so long, or longer on a slow rank."""
        me, start = self.me, self.me.clock
        end = min(start + seconds * me.slowness, me.lost_at)
        if me.trace is not None:
            me.trace.spans.append((me.number, name, start, end))
            if me.actions is not None:
                me.actions.append(("compute", name, seconds))
        me.compute_until(end)

    def isend(self, array: Array, dest: int, tag: int = 0) -> SimulatedRequest:
        """See Communicator."""
        if not 0 <= dest < self.size:
            self.check_peer(dest, "dest")
        if tag:
            self.check_tag(tag)
        cluster, me = self.cluster, self.me
        send = SimulatedRequest(me, array, self.label)
        if cluster.eager and array.nbytes < cluster.eager:
            send.array, send.done = array.copy(), me.clock
        key = (self.group, self.rank, dest, tag)
        if me.actions is not None:
            send.number = len(me.actions)
            me.actions.append(("send", self.group, tag, dest, array.nbytes))
        recv = cluster.recvs.pop(key, None)
        if recv is None:
            send.stand_in_line(cluster.sends, key)
        else:
            if recv.behind is not None:
                cluster.recvs[key] = recv.behind
            end = cluster.deliver(me, array, self.label, send.posted, recv.rank, recv.array,
                                  recv.posted)
            if send.done is None:
                send.done = end
            recv.finish(end)
        return send

    def irecv(self, out: Array, source: int, tag: int = 0) -> SimulatedRequest:
        """See Communicator."""
        if not 0 <= source < self.size:
            self.check_peer(source, "source")
        if tag:
            self.check_tag(tag)
        cluster, me = self.cluster, self.me
        recv = SimulatedRequest(me, out, self.label)
        key = (self.group, source, self.rank, tag)
        if me.actions is not None:
            recv.number = len(me.actions)
            me.actions.append(("recv", self.group, tag, source, out.nbytes))
        send = cluster.sends.pop(key, None)
        if send is None:
            recv.stand_in_line(cluster.recvs, key)
        else:
            if send.behind is not None:
                cluster.sends[key] = send.behind
            recv.done = end = cluster.deliver(send.rank, send.array, send.label, send.posted, me,
                                              out, recv.posted)
            if send.done is None:
                send.finish(end)
        return recv

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """See Communicator.  Most messages go this way, and half of what they would need is left
        out: a half that finds the other one waiting needs no request."""
        cluster, me = self.cluster, self.me
        if me.actions is not None or cluster.eager:
            self.sendrecv_in_parts(array, dest, out, source, tag)
            return
        if not (0 <= dest < self.size and 0 <= source < self.size):
            self.check_peer(dest, "dest")
            self.check_peer(source, "source")
        if tag:
            self.check_tag(tag)
        posted, send = me.clock, None
        key = self.group, self.rank, dest, tag
        recv = cluster.recvs.pop(key, None)
        if recv is None:
            send = SimulatedRequest(me, array, self.label)
            send.stand_in_line(cluster.sends, key)
        else:
            if recv.behind is not None:
                cluster.recvs[key] = recv.behind
            sent = cluster.deliver(me, array, self.label, posted, recv.rank, recv.array,
                                   recv.posted)
            recv.finish(sent)
            recv = None                     # its array is the peer's to free, from now on
        key = self.group, source, self.rank, tag
        coming = cluster.sends.pop(key, None)
        if coming is None:
            recv = SimulatedRequest(me, out, self.label)
            recv.stand_in_line(cluster.recvs, key)
            recv.wait()
        else:
            if coming.behind is not None:
                cluster.sends[key] = coming.behind
            end = cluster.deliver(coming.rank, coming.array, coming.label, coming.posted, me, out,
                                  posted)
            coming.finish(end)
            coming = None
            me.clock = end
        recv = None
        if send is not None:
            send.wait()
        elif sent > me.clock:
            me.clock = sent

    def sendrecv_in_parts(self, array: Array, dest: int, out: Array, source: int,
                          tag: int) -> None:
        """The same, buffered if it is short, and one entry in the program, not four."""
        me, actions = self.me, self.me.actions
        if actions is not None:
            actions.append(("sendrecv", self.group, tag, dest, array.nbytes, source, out.nbytes))
        me.actions = None
        send, recv = self.isend(array, dest, tag), self.irecv(out, source, tag)
        recv.wait()
        send.wait()
        me.actions = actions

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> Labelled:
        """See Communicator.  A rank whose call is not that of the first one goes no further."""
        self._num_calls += 1
        if self.size > 1:
            caller = sys._getframe(2)       # of the function that called this one
            self._compare(source_line(caller, self.started),
                          arguments_of(operation, array, uneven, options))
        return Labelled(self, operation)

    def _compare(self, place: str, arguments: dict[str, Any]) -> None:
        cluster, key = self.cluster, (self.group, self._num_calls)
        calls = cluster.calls.get(key)
        if calls is None:
            calls = cluster.calls[key] = Calls()
        calls.num_ranks += 1
        if not add_call(calls, self.world_rank, place, arguments):
            calls.differ = True
        all_here = calls.num_ranks == self.size
        if calls.differ:
            if all_here:                    # the run ends now; else when no rank can go on
                cluster.ready.clear()
            self.me.block(calls)
        elif all_here:
            del cluster.calls[key]

    def split(self, color: int | None, key: int | None = None) -> "SimulatedCommunicator | None":
        """See Communicator."""
        self.collective("split")
        cluster, me = self.cluster, self.me
        split = cluster.splits.setdefault((self.group, self._num_calls), Split())
        split.arrived.append((self.rank if key is None else key, self.rank, color, me))
        if len(split.arrived) == self.size:
            split.form(cluster.groups, cluster.groups[self.group], cluster.ready)
        else:
            me.block(split)
        if split.done > me.clock:
            me.clock = split.done
        group = None if color is None else split.groups[color]
        if me.actions is not None:
            me.actions.append(("split", self.group, color, key, group))
        if color is None:
            return None
        return SimulatedCommunicator(cluster, me, cluster.groups[group].index(me.number), group)
