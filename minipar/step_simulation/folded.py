"""A simulated cluster in which one rank of each class stands for all of them.

    virtual ranks     0  1  2  3 │ 4  5  6  7         tp of a stage │ tp of the next stage
    simulated         0          │ 4
    0 sends to 1      matched with what 0 receives from 3, whose message is its image

All members of a class do the same at the same times.  So a message to another member is matched
with this rank's own receive, first in, first out.  A ring, a pairwise exchange, doubling and
halving run unchanged, over the links of the virtual ranks.  Between classes messages are ordinary.
If each rank is a class of its own, every rank is simulated.

A rank that is matched with itself never blocks.  So before a message takes a port, its rank gives
way to ranks whose time is earlier.
"""

from collections.abc import Callable, Container, Sequence
from copy import deepcopy
from functools import cached_property
from heapq import heapreplace
from typing import Any

import numpy as np

from ..backend import Array, is_host
from ..comm.collectives.all_gather import all_gather
from ..comm.communicator import Communicator, Labelled, OwnAlgorithm
from ..comm.mesh import DeviceMesh
from ..comm.simulated import Cluster, SimulatedCommunicator
from ..comm.simulated.matching import SimulatedRequest, take
from ..comm.simulated.progress import SimulatedProgressEngine
from ..comm.simulated.rank import Rank, Split
from ..comm.simulated.replay import Blank
from ..comm.trace import Trace
from .fabric import PORTS, Fabric, FabricLink
from .rank_log import RankLog


class FoldedCluster(Cluster):
    """A cluster of virtual ranks; `stands_for[rank]` is the first rank of its class.

    `logs` has what each simulated rank did, by its number; the ranks in `traced` keep a trace.
    """

    def __init__(self, stands_for: Sequence[int], fabric: Fabric, traced: Container[int] = ()):
        super().__init__(1, chooser=None, compare_calls=False)
        self.num_ranks, self.stands_for, self.fabric = len(stands_for), stands_for, fabric
        self.devices_per_node = fabric.cluster.per_node
        self.ranks = [Rank(rank, Trace() if rank in traced else None)
                      for rank in sorted({*stands_for})]
        self.logs = {rank.world_rank: RankLog() for rank in self.ranks}
        self.numbers: dict[tuple, int] = {}             # of groups, by their kind
        self.cores = [[0.0] * (fabric.cluster.cores if fabric.shares_cores else 0)
                      for _ in range(fabric.cluster.nodes)]
        self.ports_out, self.ports_in = ([[0.0] * self.num_ranks for _ in PORTS] for _ in range(2))

    def communicator(self, me: Rank) -> "FoldedCommunicator":
        """The world of a rank."""
        return FoldedCommunicator(self, me, range(self.num_ranks), ("world",), ())

    def cores_of(self, rank: int) -> list[float]:
        """The times when the cores of a rank's node are free, a heap; [] if ranks share none."""
        return self.cores[self.fabric.node_of(rank)]

    def carry(self, array: Array, out: Array, link: FabricLink, source: int, dest: int,
              start: float) -> tuple[float, float]:
        """(time when the message leaves, time when it is there), if it may leave at `start`."""
        if is_host(array) and is_host(out):         # control: my image sent what I send
            out[...] = np.resize(array, out.shape)
        leaves, enters = self.ports_out[link.port], self.ports_in[link.port]
        start = max(start, leaves[source], enters[dest])
        leaves[source] = enters[dest] = end = start + array.nbytes / link.bandwidth
        return start, end + link.latency


class CopyingEngine(SimulatedProgressEngine):
    """The Works (non-blocking collectives) of a rank whose core copies its messages itself.

    None of them goes on beside computation.
    """

    def poll(self) -> None:
        """Nothing: Works go on while the rank waits."""


class FoldedRequest(SimulatedRequest):
    """A send or a receive.  `to`: source, dest and link of a send; `started`: when it left."""

    __slots__ = ("log", "started", "to")

    def __init__(self, comm: "FoldedCommunicator", array: Array, to: Any = None):
        super().__init__(comm.rank_state, array, comm.label)
        self.log, self.to = comm.log, to

    def wait(self) -> None:
        """Block until it is done, while Works go on; note what the rank waited for.

        Works go on even if both halves of the message have met already.  So all ranks of a class do
        the same, whether they came first or last.
        """
        rank, before = self.rank, self.rank.clock
        if self.ended_at is None:
            rank.block(self)
        while type(rank) is Rank and rank.engine is not None and rank.clock < self.ended_at:
            engine = rank.engine
            engine.sleep(self)
            engine.resume_all()
        if self.ended_at > rank.clock:
            rank.clock = self.ended_at
        if rank.clock > before and type(rank) is Rank:
            self.log.waited(self.label, before, self.started, rank.clock)


class FoldedCommunicator(SimulatedCommunicator):
    """A group of virtual ranks, `members`, along `mesh_axes`; `kind` is the group's name.

    A group along several axes has `parts`: the groups along each axis, the innermost axis first.
    """

    parts: Sequence["FoldedCommunicator"] = ()
    num_splits = 0

    def __init__(self, cluster: FoldedCluster, me: Any, members: Sequence[int], kind: tuple,
                 mesh_axes: Sequence[str]):
        self.cluster, self.rank_state, self.members = cluster, me, members
        self.kind, self.mesh_axes, self.world_rank = kind, mesh_axes, me.world_rank
        self.rank, self.size = members.index(me.world_rank), len(members)
        self.group = cluster.numbers.setdefault(kind, len(cluster.numbers))
        self.log = cluster.logs[me.world_rank]
        self.num_calls, self.label = 0, ""
        self.links: dict[int, FabricLink] = {}

    def world_rank_of(self, rank: int) -> int:
        """The number of `rank` in the whole world."""
        return self.members[rank]

    def make_progress_engine(self) -> SimulatedProgressEngine:
        """An engine for the Works of this rank."""
        shares = self.cluster.fabric.cluster.cores
        return (CopyingEngine if shares else SimulatedProgressEngine)(self.rank_state)

    def channel(self, me: Any, index: int) -> "FoldedCommunicator":
        """The same ranks, whose messages never meet those of another `index`."""
        made = FoldedCommunicator(self.cluster, me, self.members, (*self.kind, index),
                                  self.mesh_axes)
        made.parts = [part.channel(me, index) for part in self.parts]
        return made

    def split(self, color: int | None, key: int | None = None) -> "FoldedCommunicator | None":
        """Collective.  The members whose classes give this `color`."""
        cluster, me, stands_for = self.cluster, self.rank_state, self.cluster.stands_for
        classes = frozenset([stands_for[member] for member in self.members])
        self.num_splits += 1
        split = cluster.splits.setdefault((self.kind, classes, self.num_splits), Split())
        split.arrived.append((self.world_rank, 0, color, me))
        if len(split.arrived) == len(classes):
            split.wake(cluster.ready)
        else:
            me.block(split)
        me.clock = max(me.clock, split.ended_at)
        if color is None:
            return None
        colors = {rank: each for rank, _, each, _ in split.arrived}
        members = [member for member in self.members if colors[stands_for[member]] == color]
        return FoldedCommunicator(cluster, me, members, (*self.kind, self.num_splits, color),
                                  self.mesh_axes)

    # Messages.

    def isend(self, array: Array, dest: int, tag: int = 0) -> FoldedRequest:
        """Begin to send `array`.  Raises RuntimeError while a program is recorded."""
        if self.is_recorded:
            raise RuntimeError("only exchanges can be repeated: simulate every microbatch, "
                               "repeat=False")
        return self._isend(array, dest, tag)

    def _isend(self, array: Array, dest: int, tag: int) -> FoldedRequest:
        cluster, me, member = self.cluster, self.rank_state, self.members[dest]
        me.compute_until(me.clock)                  # earlier ranks first
        send = FoldedRequest(self, array, (self.world_rank, member, self.link_to(member)))
        key = (self.group, self.world_rank, cluster.stands_for[member], tag)
        self._meet(send, cluster.sends, cluster.recvs, key)
        return send

    def irecv(self, out: Array, source: int, tag: int = 0) -> FoldedRequest:
        """Begin to receive into `out`."""
        cluster, me, member = self.cluster, self.rank_state, self.members[source]
        me.compute_until(me.clock)
        recv = FoldedRequest(self, out)
        key = (self.group, cluster.stands_for[member], self.world_rank, tag)
        self._meet(recv, cluster.recvs, cluster.sends, key)
        return recv

    def _meet(self, mine: FoldedRequest, own_queue: dict, others: dict, key: tuple) -> None:
        """Stand in line, or deliver the message whose other half waits already."""
        other = take(others, key)
        if other is None:
            mine.stand_in_line(own_queue, key)
            return
        send, recv = (mine, other) if mine.to else (other, mine)
        source, dest, link = send.to
        posted = max(send.posted, recv.posted)
        mine.started, mine.ended_at = self.cluster.carry(
            send.array, recv.array, link, send.rank.world_rank, recv.rank.world_rank, posted)
        other.started = mine.started
        if send.rank.messages is not None:
            send.rank.messages.append((source, dest, send.array.nbytes, send.label, send.posted,
                                       mine.started, mine.ended_at))
        other.finish(mine.ended_at)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Send and receive.  Within a class the rank is its own partner, and needs no requests."""
        self.record(self.sendrecv, Blank(array.nbytes), dest, Blank(out.nbytes), source, tag)
        me = self.rank_state
        if self._is_alone_with(dest, source, tag) and array.nbytes == out.nbytes and (
                me.engine is None or type(me) is not Rank):
            me.compute_until(me.clock)
            before, member = me.clock, self.members[dest]
            start, end = self.cluster.carry(array, out, self.link_to(member), self.world_rank,
                                            self.world_rank, before)
            if me.messages is not None:
                me.messages.append((self.world_rank, member, array.nbytes, self.label, before,
                                    start, end))
            me.clock = end
            if type(me) is Rank:
                self.log.waited(self.label, before, start, end)
            return
        receiving, sending = self.irecv(out, source, tag), self._isend(array, dest, tag)
        receiving.wait()
        sending.wait()

    def _is_alone_with(self, dest: int, source: int, tag: int) -> bool:
        """True if both ranks are of this rank's class, and no message between them is under way."""
        cluster, stands_for, me = self.cluster, self.cluster.stands_for, self.world_rank
        key = self.group, me, me, tag
        return (stands_for[self.members[dest]] == me == stands_for[self.members[source]]
                and key not in cluster.sends and key not in cluster.recvs)

    def link_to(self, member: int) -> FabricLink:
        """The link to a virtual rank."""
        if member not in self.links:
            self.links[member] = self.cluster.fabric.link(self.world_rank, member, self.members,
                                                          self.mesh_axes)
        return self.links[member]

    @property
    def is_recorded(self) -> bool:
        """True if calls are recorded now: those of the program itself, not of its Works."""
        return self.log.program is not None and type(self.rank_state) is Rank

    def record(self, method: Callable, *arguments: Any) -> None:
        """Add a call to the program of the log, if it records one."""
        if self.is_recorded:
            self.log.record(self, method, *arguments)

    # Computation and collectives.

    def spend(self, name: str, seconds: float, flops: int = 0) -> None:
        """Compute for `seconds`, on the first core of the node that is free if ranks share them."""
        me, cores = self.rank_state, self.cluster.cores_of(self.world_rank)
        if cores:
            me.compute_until(me.clock)          # earlier ranks first
            start = max(me.clock, cores[0])
            heapreplace(cores, start + seconds)
            seconds += start - me.clock
        super().spend(name, seconds)
        self.log.computed(name, seconds, flops)
        self.record(self.spend, name, seconds, flops)

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> Labelled:
        """Context of a collective, which takes the time to launch it."""
        if self.size > 1:
            self.launch()
        return Labelled(self, operation + self.axes)

    def launch(self) -> None:
        """Spend the seconds before the first message of a collective."""
        me, seconds = self.rank_state, self.cluster.fabric.cluster.software.latency
        me.clock += seconds
        if type(me) is Rank:
            self.log.computed("launch", seconds, 0)
        self.record(self.launch)

    def repeat(self, run: Callable[[], Any], times: int) -> None:
        """Call `run` once; then let its time pass `times` more times, with equal events."""
        me, before, start = self.rank_state, deepcopy(self.log), self.now()
        events = [(me.trace.spans, 2), (me.trace.messages, 4)] if me.trace is not None else []
        known = [len(log) for log, _ in events]
        run()
        if times < 1:
            return
        seconds = me.clock - start
        for (log, first), done in zip(events, known):       # `first`: the place of an event's times
            log.extend([(*event[:first], *(time + seconds * number for time in event[first:]))
                        for number in range(1, times + 1) for event in log[done:]])
        self.log.repeat(before, seconds, times)
        me.compute_until(me.clock + seconds * times)

    def choose(self, operation: str, num_bytes: int) -> str | None:
        """An algorithm for the operation in which all ranks do the same, mostly a ring."""
        if operation == "broadcast":
            return "equal"
        if operation == "all_gather" and self.label == "control":
            return ("recursive_doubling" if self.size.bit_count() == 1 else
                    "by_axis" if self.parts else "ring")
        return {"all_to_all": "pairwise", "barrier": "dissemination"}.get(operation, "ring")


def keep(comm: Any, *arguments: Any) -> None:
    """A broadcast to ranks that have the same values already."""


def by_axis(comm: FoldedCommunicator, chunks: list[Array]) -> None:
    """All-gather along one axis after the other, where all ranks give what this rank gives."""
    so_far = chunks[comm.rank]
    for part in comm.parts:
        with part.labelled(comm.label):
            so_far = all_gather(part, so_far)
    for chunk in chunks:
        chunk[...] = chunks[comm.rank]


FoldedCommunicator.own_algorithms = {
    ("broadcast", "equal"): OwnAlgorithm(keep, lambda comm: True),
    ("all_gather", "by_axis"): OwnAlgorithm(by_axis, lambda comm: True)}


class FoldedMesh(DeviceMesh):
    """A mesh of the virtual ranks."""

    comm: FoldedCommunicator

    def __init__(self, comm: FoldedCommunicator, **sizes: int):
        super().__init__(comm, **sizes)
        comm.parts = self._parts_along([*self._lengths])

    @cached_property
    def alone(self) -> Communicator:
        """This rank alone."""
        return FoldedCommunicator(self.comm.cluster, self.comm.rank_state, [self.comm.rank],
                                  ("alone",), ())

    def _along(self, axes: tuple[str, ...]) -> FoldedCommunicator:
        sizes = self._lengths
        place = tuple([slice(None) if axis in axes else self._coordinates[axis] for axis in sizes])
        grid = self.grid.reshape(tuple(sizes.values()))
        # "edp" stays even if its size is 1: else dp would look like ep alone
        long = [axis for axis in axes if sizes[axis] > 1 or axis == "edp"]
        along = FoldedCommunicator(self.comm.cluster, self.comm.rank_state,
                                   grid[place].ravel().tolist(), axes, long)
        along.axes = self.label_of(axes)
        if len(axes) > 1:
            along.parts = self._parts_along(axes)
        return along

    def _parts_along(self, axes: Sequence[str]) -> list[FoldedCommunicator]:
        return [self._along((axis,)) for axis in reversed(axes) if self._lengths[axis] > 1]
