"""A send or receive under way between real ranks, and what may be wrong with what comes."""

import time

import numpy as np

from ...backend import Array, asarray_like
from ..communicator import Communicator
from ..trace import POLL
from .library import import_mpi


def lies_ready(array: Array) -> bool:
    """Whether MPI can read or write this array where it is."""
    return type(array) is np.ndarray and array.flags.c_contiguous


def what(description: tuple) -> str:
    """A message in an error."""
    kind, peer, tag, _, label = description
    return f"{kind} rank {peer} (tag {tag}{', part of ' + label if label else ''})"


def explain(error: Exception, description: tuple) -> None:
    """Raise a plainer error in place of MPI's, if that is about a message that is too long.

    Any other comes of a peer that has died, as a rule: mpirun then ends this rank within moments,
    and the guardian says of what that one died.  So whoever raises the error waits for that first.
    """
    if error.Get_error_class() == import_mpi().ERR_TRUNCATE:
        raise ValueError(f"{what(description)}: the message is larger than the receive buffer of "
                         f"{description[3]} bytes") from error
    time.sleep(1)


def check_size(num_bytes: int, description: tuple) -> None:
    """Refuse a message that is shorter than its buffer."""
    if num_bytes != description[3]:
        raise ValueError(f"{what(description)}: {num_bytes} bytes came, but the receive buffer "
                         f"holds {description[3]}: sizes and dtypes must be equal")


class MPIRequest:
    """See Request."""

    def __init__(self, comm: Communicator, request, description: tuple, out: Array = None,
                 buffer: np.ndarray | None = None, number: int | None = None):
        self.comm, self.request, self.description = comm, request, description
        self.peers = [comm.members[description[1]]]     # as numbers of the world
        self.number = number                        # in the rank's program, if that is logged
        self.out, self.buffer = out, buffer         # of a receive: where to, through what
        self.posted, self.done = time.perf_counter(), False

    def wait(self) -> None:
        """Block until it is done.  Raises ValueError if the message has another size."""
        self.comm.me.log("wait", self.number)
        engine = self.comm.me.engine
        if engine is None:
            self.block()
        else:                           # this wait advances the Works of this rank
            engine.wait(self)

    def block(self) -> None:
        """Wait inside MPI."""
        if self.done:
            return
        with self.comm.me.watchdog.watching(self.description, self.peers):
            self._ask(self.request.Wait)

    def test(self) -> bool:
        """Whether it is done."""
        if self.comm.me.actions and self.comm.me.actions[-1] != POLL:
            self.comm.me.log(*POLL)
        return self.peek()

    def peek(self) -> bool:
        """The same; nothing that is logged depends on it."""
        return self.done or self._ask(self.request.Test)

    def _ask(self, question) -> bool:
        status = self.comm.me.status
        try:
            answer = question(status)
        except self.comm.MPI.Exception as error:
            explain(error, self.description)
            raise
        if answer:
            self._finish(status)
        return answer

    def _finish(self, status) -> None:
        self.done = True
        kind, peer, _, num_bytes, label = self.description
        comm = self.comm
        trace, me, peer = comm.trace, comm.world_rank, comm.members[peer]
        if trace is not None and kind == "send to":
            trace.messages.append((me, peer, num_bytes, label, self.posted, self.posted,
                                   time.perf_counter()))
        elif trace is not None:
            trace.receives.append((peer, me, num_bytes, label, self.posted, time.perf_counter()))
        if self.out is None:
            return
        check_size(status.Get_count(comm.MPI.BYTE), self.description)
        if self.buffer is not self.out:
            self.out[...] = asarray_like(self.buffer, self.out)
