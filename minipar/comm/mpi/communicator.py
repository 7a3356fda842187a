"""A Communicator over real MPI processes, through mpi4py.

Messages are plain bytes, so every dtype but Python objects travels.  An array that is not
contiguous, or lives on a GPU, is staged through a host buffer.  Sizes are compared, dtypes are not.
(The simulated cluster compares both.)  Every wait for a message is announced (`process.py`), and
watched (`watchdog.py`): none is endless.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent

from ...backend import Array, to_host
from ..communicator import Choose, Chooser, Communicator, OwnAlgorithm, Request, some_of
from ..errors import NUM_TAGS, check_message
from ..work import ProgressEngine, pause
from .process import Process
from .request import MPIRequest, check_size, explain_error, is_usable_in_place


class MPICommunicator(Communicator):
    """A Communicator over mpi4py's `mpi_comm`, whose ranks are `members` of the world.

    Tags 0 … 32767 are for programs.  Higher tags belong to non-blocking collectives; each adds its
    `first_tag`.  `chooser` decides which algorithm "auto" means.
    """

    is_simulated = False
    rank_state: Process
    num_kinds = 1           # of messages, which share the tags; 2 under MINIPAR_CHECK=1
    memory: Any = None      # what its ranks share on this node (shared_memory.py)

    def __init__(self, mpi_comm: Any, MPI: Any, rank_state: Process, members: list[int],
                 chooser: Chooser | None = None,
                 own_algorithms: Mapping[tuple[str, str], OwnAlgorithm] | None = None,
                 first_tag: int = 0):
        self.mpi_comm, self.MPI, self.members, self.rank_state = mpi_comm, MPI, members, rank_state
        self.first_tag, self.group = first_tag, rank_state.num_groups
        rank_state.num_groups += 1
        self.chooser, self.own_algorithms = chooser, own_algorithms or {}
        self.choice: Choose | None = None       # what the chooser returned
        self.rank, self.size = mpi_comm.Get_rank(), len(members)
        self.world_rank = rank_state.world_rank

    def with_tags(self, index: int) -> "MPICommunicator":
        """The same ranks, with a range of tags of its own.

        Ranges are used again after `num_ranges` indices, thousands in MPICH and Open MPI.
        """
        # Only the world has the attribute by the standard; Open MPI's other communicators do not.
        num_ranges = self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB) // NUM_TAGS // self.num_kinds - 1
        if num_ranges < 1:
            raise RuntimeError("this MPI library has too few tags for non-blocking collectives: "
                               "call the collective itself")
        return type(self)(self.mpi_comm, self.MPI, self.rank_state, self.members, self.chooser,
                          self.own_algorithms, NUM_TAGS * (1 + index % num_ranges))

    def make_progress_engine(self) -> Any:
        """An engine for the Works (non-blocking collectives) of this rank."""
        return MPIProgressEngine(self.rank_state)

    def choose(self, operation: str, num_bytes: int) -> str | None:
        """The algorithm that the chooser takes; None without a chooser."""
        if self.choice is None:
            if self.chooser is None:
                return None
            self.choice = self.chooser(self)
        return self.choice(operation, num_bytes)

    def wait_any(self, requests: Sequence[Request | None]) -> int:
        """Block until one of the requests is done; return its index."""
        live = some_of(requests)
        # No peer is given: any of them may be missing.
        with self.rank_state.wait_for(live[0][1].description, ()):
            while True:
                for i, request in live:
                    if request.test():
                        return i
                time.sleep(0)               # another process may need this core

    def free(self) -> None:
        """Collective.  Free the communicator in the MPI library; it cannot be used afterwards.

        All its requests must be done: in MPICH with UCX before 4.2, a receive that still waits
        takes a message of a later communicator.
        """
        if self in self.rank_state.splits:
            self.rank_state.splits.remove(self)
        if self.memory is not None:
            self.memory.free()
        self.mpi_comm.Free()

    def node_of(self, rank: int) -> int:
        """The number of the node of `rank`."""
        return self.rank_state.nodes[self.members[rank]]

    def world_rank_of(self, rank: int) -> int:
        """The number of `rank` in the whole world."""
        return self.members[rank]

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.perf_counter()

    def report_compute(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Trace a computation."""
        if self.trace is not None:
            end = time.perf_counter()
            self.trace.spans.append((self.world_rank, name, end - seconds, end))
            self.rank_state.log("compute", name, seconds)

    def isend(self, array: Array, dest: int, tag: int = 0) -> MPIRequest:
        """Begin to send `array`, through a host buffer if it is on a GPU or has gaps."""
        if not (type(array) is np.ndarray and not array.dtype.hasobject
                and 0 <= dest < self.size and 0 <= tag < NUM_TAGS):
            check_message(self, array, dest, "dest", tag)
        buffer = np.ascontiguousarray(to_host(array))
        request = self.mpi_comm.Isend([buffer, self.MPI.BYTE], dest, tag + self.first_tag)
        description = ("send to", dest, tag, buffer.nbytes, self.label)
        action = self.rank_state.log("send", self.group, tag, dest, buffer.nbytes)
        return MPIRequest(self, request, description, buffer=buffer, action=action)

    def irecv(self, out: Array, source: int, tag: int = 0) -> MPIRequest:
        """Begin to receive into `out`, through a host buffer if it is on a GPU or has gaps."""
        if not (type(out) is np.ndarray and out.flags.writeable and not out.dtype.hasobject
                and 0 <= source < self.size and 0 <= tag < NUM_TAGS):
            check_message(self, out, source, "source", tag)
        buffer = out if is_usable_in_place(out) else np.empty(out.shape, out.dtype)
        request = self.mpi_comm.Irecv([buffer, self.MPI.BYTE], source, tag + self.first_tag)
        description = ("receive from", source, tag, buffer.nbytes, self.label)
        action = self.rank_state.log("recv", self.group, tag, source, buffer.nbytes)
        return MPIRequest(self, request, description, out, buffer, action)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Exchange: one call of the library, if there is no copy, no trace and no Work."""
        me, size = self.rank_state, self.size
        are_plain = type(array) is type(out) is np.ndarray
        # Both at once: a half that is under way when the other is refused would take a message
        # that is meant for a later call.
        if not (are_plain and out.flags.writeable
                and not (array.dtype.hasobject or out.dtype.hasobject)
                and 0 <= dest < size and 0 <= source < size and 0 <= tag < NUM_TAGS):
            check_message(self, array, dest, "dest", tag)
            check_message(self, out, source, "source", tag)
        # is_usable_in_place of both, written out: two calls would add a tenth to a short message
        if not (are_plain and array.flags.c_contiguous and out.flags.c_contiguous
                and me.trace is None and me.engine is None):
            Communicator.sendrecv(self, array, dest, out, source, tag)
            return
        # A new tuple, by which the watchdog recognizes this wait.
        num_bytes, members = out.nbytes, self.members
        description = "receive from", source, tag, num_bytes, self.label
        me.waiting = description, (members[dest], members[source])
        BYTE, status, tag = self.MPI.BYTE, me.status, tag + self.first_tag
        try:
            self.mpi_comm.Sendrecv([array, BYTE], dest, tag, [out, BYTE], source, tag, status)
        except Exception as error:
            explain_error(error, description, out)
            raise
        finally:
            me.waiting = None
        arrived = status.Get_count(BYTE)
        if arrived != num_bytes:
            check_size(arrived, description)

    def split(self, color: int | None, key: int | None = None) -> "MPICommunicator | None":
        """Collective.  A communicator of the ranks with this rank's `color`."""
        no_color = self.MPI.UNDEFINED if color is None else color
        with self.rank_state.wait_for(("split", None, None, 0, self.label), self.members):
            part = self.mpi_comm.Split(no_color, self.rank if key is None else key)
            if color is None:
                self.rank_state.log("split", self.group, None, key, None)
                return None
            members = part.allgather(self.world_rank)
        comm = type(self)(part, self.MPI, self.rank_state, members, self.chooser,
                          self.own_algorithms)
        self.rank_state.splits.append(comm)
        self.rank_state.log("split", self.group, color, key, comm.group)
        return comm


class MPIProgressEngine(ProgressEngine):
    """The Works of one real rank: each asks MPI for its request whenever it is resumed.

    A program that waits for its only Work blocks inside the MPI library.  In all other cases it
    polls one request after the other.
    """

    alone = False           # True while the program waits for its only Work, which may then block

    def __init__(self, rank_state: Any):
        super().__init__(rank_state)
        self.standing_at: dict = {}     # greenlet of a Work -> the request that it waits for

    def communicator(self, comm: Any) -> Any:
        """`comm` with tags of its own."""
        return comm.with_tags(comm.num_works)

    def poll(self) -> None:
        """Let each Work ask for its request."""
        self.resume_all()

    def finish(self, work: Any) -> None:
        """Block until `work` is done: inside MPI if it is the only one, else polling."""
        process, seen = self.rank_state, None
        process.program = sys._getframe()
        try:
            while not work.done:
                self.alone = self.running == [work]
                self.resume_all()
                request = self.standing_at.get(work.greenlet)
                if request not in (seen, None):     # another wait: the watchdog starts afresh
                    seen, process.waiting = request, (request.description, request.peers)
                if not self.alone:
                    time.sleep(0)       # another process may need this core
        finally:
            self.alone, process.waiting, process.program = False, None, None

    def wait(self, request: Any) -> None:
        """Block until `request` is done; called by MPIRequest.wait while there are Works."""
        if self.is_inside():
            here = getcurrent()
            self.standing_at[here] = request
            while not request.test():
                request.block() if self.alone else pause()
            del self.standing_at[here]
            return
        with self.rank_state.wait_for(request.description, request.peers):
            while not request.test():
                self.resume_all()
                time.sleep(0)


def connect(mpi_comm: Any, MPI: Any, chooser: Chooser | None = None,
            own_algorithms: Mapping[tuple[str, str], OwnAlgorithm] | None = None,
            watch: Callable[[Process, Any], None] | None = None,
            kind: type[MPICommunicator] = MPICommunicator) -> MPICommunicator:
    """Collective.  A communicator of the ranks of `mpi_comm`, which become a world of their own.

    `watch` is called with the Process and the mpi4py communicator of its node: see `world.py`.
    """
    comm = mpi_comm.Dup()           # our messages never meet those of other libraries
    rank, size = comm.Get_rank(), comm.Get_size()
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)            # the ranks that share memory with us
    process = Process(MPI, rank, size)
    if watch is not None:
        watch(process, node)
    first = comm.allgather(node.allreduce(rank, MPI.MIN))   # of each rank: the least of its node
    process.nodes = [sorted(set(first)).index(least) for least in first]
    node.Free()
    return kind(comm, MPI, process, list(range(size)), chooser, own_algorithms)
