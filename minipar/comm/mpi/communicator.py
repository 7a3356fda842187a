"""A Communicator over real MPI processes, through mpi4py.

Messages are plain bytes, so every dtype travels; an array that is not contiguous, or lives on a
GPU, is staged through a host buffer; sizes are compared, dtypes are not (the simulated cluster
compares both).  Every wait for a message is watched (`watchdog.py`): none is endless.
"""

import functools
import time

import numpy as np

from ...backend import Array, is_gpu, is_host, to_host
from ..communicator import NUM_TAGS, Communicator
from ..cost import calibration
from ..trace import Trace
from .guardian import Guardian
from .library import forget_shared_memory, import_mpi
from .request import MPIRequest, check_size, explain, lies_ready
from .watchdog import Watchdog


class Process:
    """What all communicators of one process share."""

    def __init__(self, MPI, rank: int, size: int, guardian: Guardian):
        self.number, self.guardian = rank, guardian
        self.watchdog = Watchdog(MPI, rank, size, guardian)
        self.status = MPI.Status()          # of the message that ended last
        self.nodes = [0] * size             # of each rank of the world
        self.calibration = calibration.BUILT_IN     # of the machine; the same on all ranks
        self.works = None       # the non-blocking collectives under way, if any (see work.py)
        self.num_groups = 0                 # how many communicators this process made
        self.splits: list = []              # what split() made, for who frees them
        self.trace: Trace | None = None
        self.actions: list[tuple] | None = None

    def log_to(self, trace: Trace | None) -> None:
        """Log events there from now on, or nowhere."""
        self.trace = trace
        self.actions = trace.programs.get(self.number) if trace is not None else None

    def log(self, *action) -> int | None:
        """Add to the program, if it is logged; return the number of the action."""
        if self.actions is None:
            return None
        self.actions.append(action)
        return len(self.actions) - 1


class MPICommunicator(Communicator):
    """See Communicator; `mpi_comm` is mpi4py's.  Tags 0 … 32767 are free for all to use; those
    above belong to non-blocking collectives, each of which adds its `first_tag`."""

    memory = None       # what its ranks share on this node (collectives/node_memory.py)

    def __init__(self, mpi_comm, MPI, me: Process, members: list[int], first_tag: int = 0):
        self.mpi_comm, self.MPI, self.me, self.members = mpi_comm, MPI, me, members
        self.first_tag, self.group = first_tag, me.num_groups
        me.num_groups += 1
        self.chooser = None     # how "auto" chooses here (collectives/automatic.py), once asked
        self.rank, self.size, self.world_rank = mpi_comm.Get_rank(), mpi_comm.Get_size(), me.number

    def with_tags(self, number: int) -> "MPICommunicator":
        """The same ranks; its messages never meet those of another `number`."""
        # Only the world has the attribute by the standard; Open MPI's other communicators do not.
        num_ranges = self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB) // NUM_TAGS - 1
        if num_ranges < 1:
            raise RuntimeError("this MPI library has too few tags for non-blocking collectives: "
                               "call the collective itself")
        comm = MPICommunicator(self.mpi_comm, self.MPI, self.me, self.members,
                               NUM_TAGS * (1 + number % num_ranges))
        comm.chooser = self.chooser
        return comm

    def free(self) -> None:
        """Give back what it holds in the MPI library; all its ranks call it, and use it no more."""
        if self in self.me.splits:
            self.me.splits.remove(self)
        if self.memory is not None:
            self.memory.free()
        self.mpi_comm.Free()

    def node_of(self, rank: int) -> int:
        """See Communicator."""
        return self.me.nodes[self.members[rank]]

    def world_rank_of(self, rank: int) -> int:
        """See Communicator."""
        return self.members[rank]

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.perf_counter()

    def work(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Trace it."""
        if self.trace is not None:
            end = time.perf_counter()
            self.trace.spans.append((self.world_rank, name, end - seconds, end))
            self.me.log("compute", name, seconds)

    def isend(self, array: Array, dest: int, tag: int = 0) -> MPIRequest:
        """See Communicator."""
        self.check_peer(dest, "dest")
        self.check_tag(tag)
        buffer = np.ascontiguousarray(to_host(array))
        request = self.mpi_comm.Isend([buffer, self.MPI.BYTE], dest, tag + self.first_tag)
        description = ("send to", dest, tag, buffer.nbytes, self.label)
        number = self.me.log("send", self.group, tag, dest, buffer.nbytes)
        return MPIRequest(self, request, description, buffer=buffer, number=number)

    def irecv(self, out: Array, source: int, tag: int = 0) -> MPIRequest:
        """See Communicator."""
        self.check_peer(source, "source")
        self.check_tag(tag)
        if not (is_host(out) or is_gpu(out)):
            raise TypeError(f"MPI cannot receive into a {type(out).__name__}, which has no numbers")
        buffer = out if lies_ready(out) else np.empty(out.shape, out.dtype)
        request = self.mpi_comm.Irecv([buffer, self.MPI.BYTE], source, tag + self.first_tag)
        description = ("receive from", source, tag, buffer.nbytes, self.label)
        number = self.me.log("recv", self.group, tag, source, buffer.nbytes)
        return MPIRequest(self, request, description, out, buffer, number)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """See Communicator.  One call of the library where nothing stands between: no copy, no
        log, no Works to move on."""
        me = self.me
        if (me.trace is not None or me.works is not None or not lies_ready(array)
                or not lies_ready(out)):
            Communicator.sendrecv(self, array, dest, out, source, tag)
            return
        size = self.size
        if not (0 <= dest < size and 0 <= source < size and 0 <= tag < NUM_TAGS):
            self.check_peer(dest, "dest")
            self.check_peer(source, "source")
            self.check_tag(tag)
        # A new tuple: what the watchdog knows this wait by.
        description = "receive from", source, tag, out.nbytes, self.label
        me.watchdog.waiting = description, (self.members[dest], self.members[source])
        BYTE, status, tag = self.MPI.BYTE, me.status, tag + self.first_tag
        try:
            self.mpi_comm.Sendrecv([array, BYTE], dest, tag, [out, BYTE], source, tag, status)
        except self.MPI.Exception as error:
            explain(error, description)
            raise
        finally:
            me.watchdog.waiting = None
        check_size(status.Get_count(BYTE), description)

    def split(self, color: int | None, key: int | None = None) -> "MPICommunicator | None":
        """See Communicator."""
        no_color = self.MPI.UNDEFINED if color is None else color
        waiting = ("split", None, None, 0, self.label)
        with self.me.watchdog.watching(waiting, self.members):
            part = self.mpi_comm.Split(no_color, self.rank if key is None else key)
            if color is None:
                self.me.log("split", self.group, None, key, None)
                return None
            members = part.allgather(self.world_rank)
        part = MPICommunicator(part, self.MPI, self.me, members)
        self.me.splits.append(part)
        self.me.log("split", self.group, color, key, part.group)
        return part


@functools.cache
def world_communicator() -> MPICommunicator:
    """All ranks that `mpirun` started."""
    MPI = import_mpi()
    comm = MPI.COMM_WORLD.Dup()     # our messages never meet those of other libraries
    size = comm.Get_size()
    box = comm.Split_type(MPI.COMM_TYPE_SHARED)             # the ranks that share memory with us
    me = Process(MPI, comm.Get_rank(), size, Guardian(box, comm.Get_rank(), size))
    forget_shared_memory()
    first = comm.allgather(box.allreduce(me.number, MPI.MIN))           # the least of each node
    me.nodes = [sorted(set(first)).index(rank) for rank in first]
    box.Free()
    me.calibration = calibration.shared(comm, MPI)
    return MPICommunicator(comm, MPI, me, list(range(size)))
