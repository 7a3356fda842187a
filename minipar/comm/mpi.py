"""A Communicator over real MPI processes, through mpi4py.

Messages are plain bytes, so every dtype travels; an array that is not contiguous, or lives on a
GPU, is staged through a host buffer; sizes are compared, dtypes are not (the simulated cluster
compares both).  Every wait for a message is watched (`watchdog.py`): none is endless.
"""

import functools
import time

import numpy as np

from ..backend import Array, is_gpu, is_host, like, to_host
from .communicator import Communicator
from .mpi_library import import_mpi
from .trace import Trace
from .watchdog import Watchdog


class Process:
    """What all communicators of one process share."""

    def __init__(self, MPI, rank: int, size: int):
        self.number, self.watchdog = rank, Watchdog(MPI, rank, size)
        self.trace: Trace | None = None

    def log_to(self, trace: Trace | None) -> None:
        """Log events there from now on, or nowhere."""
        self.trace = trace


class MPIRequest:
    """See Request."""

    def __init__(self, comm: "MPICommunicator", request, description: tuple, out: Array = None,
                 buffer: np.ndarray | None = None):
        self.comm, self.request, self.description = comm, request, description
        self.out, self.buffer = out, buffer         # of a receive: where to, through what
        self.posted, self.done = time.perf_counter(), False

    def wait(self) -> None:
        """Block until it is done.  Raises ValueError if the message has another size."""
        if self.done:
            return
        comm, status = self.comm, self.comm.MPI.Status()
        with comm.me.watchdog.watching(self.description):
            try:
                self.request.Wait(status)
            except comm.MPI.Exception as error:
                if error.Get_error_class() != comm.MPI.ERR_TRUNCATE:
                    raise
                raise ValueError(f"{self._what()}: the message is larger than the receive "
                                 f"buffer of {self.buffer.nbytes} bytes") from error
        self._finish(status)

    def test(self) -> bool:
        """Whether it is done."""
        if not self.done:
            status = self.comm.MPI.Status()
            if self.request.Test(status):
                self._finish(status)
        return self.done

    def _what(self) -> str:
        kind, peer, tag, _, label = self.description
        return f"{kind} rank {peer} (tag {tag}{', part of ' + label if label else ''})"

    def _finish(self, status) -> None:
        self.done = True
        kind, peer, _, num_bytes, label = self.description
        comm = self.comm
        if comm.trace is not None and kind == "send to":
            comm.trace.messages.append((comm.world_rank, comm.members[peer], num_bytes, label,
                                        self.posted, self.posted, time.perf_counter()))
        if self.out is None:
            return
        count = status.Get_count(comm.MPI.BYTE)
        if count != self.out.nbytes:
            raise ValueError(f"{self._what()}: {count} bytes came, but the receive buffer holds "
                             f"{self.out.nbytes}: sizes and dtypes must be equal")
        if self.buffer is not self.out:
            self.out[...] = like(self.buffer, self.out)


class MPICommunicator(Communicator):
    """See Communicator; `mpi_comm` is mpi4py's."""

    def __init__(self, mpi_comm, MPI, me: Process, members: list[int]):
        self.mpi_comm, self.MPI, self.me, self.members = mpi_comm, MPI, me, members
        self.rank, self.size, self.world_rank = mpi_comm.Get_rank(), mpi_comm.Get_size(), me.number

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.perf_counter()

    def work(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Trace it."""
        if self.trace is not None:
            end = time.perf_counter()
            self.trace.spans.append((self.world_rank, name, end - seconds, end))

    def isend(self, array: Array, dest: int, tag: int = 0) -> MPIRequest:
        """See Communicator."""
        self.check_peer(dest, "dest")
        buffer = np.ascontiguousarray(to_host(array))
        request = self.mpi_comm.Isend([buffer, self.MPI.BYTE], dest, tag)
        description = ("send to", dest, tag, buffer.nbytes, self.label)
        return MPIRequest(self, request, description, buffer=buffer)

    def irecv(self, out: Array, source: int, tag: int = 0) -> MPIRequest:
        """See Communicator."""
        self.check_peer(source, "source")
        if not (is_host(out) or is_gpu(out)):
            raise TypeError(f"MPI cannot receive into a {type(out).__name__}, which has no numbers")
        direct = is_host(out) and out.flags.c_contiguous
        buffer = out if direct else np.empty(out.shape, out.dtype)
        request = self.mpi_comm.Irecv([buffer, self.MPI.BYTE], source, tag)
        description = ("receive from", source, tag, buffer.nbytes, self.label)
        return MPIRequest(self, request, description, out, buffer)

    def split(self, color: int | None, key: int | None = None) -> "MPICommunicator | None":
        """See Communicator."""
        no_color = self.MPI.UNDEFINED if color is None else color
        with self.me.watchdog.watching(("split", None, None, 0, self.label)):
            part = self.mpi_comm.Split(no_color, self.rank if key is None else key)
            if color is None:
                return None
            members = part.allgather(self.world_rank)
        return MPICommunicator(part, self.MPI, self.me, members)


@functools.cache
def world_communicator() -> MPICommunicator:
    """All ranks that `mpirun` started."""
    MPI = import_mpi()
    comm = MPI.COMM_WORLD.Dup()     # our messages never meet those of other libraries
    size = comm.Get_size()
    return MPICommunicator(comm, MPI, Process(MPI, comm.Get_rank(), size), list(range(size)))
