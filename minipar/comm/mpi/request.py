"""A send or receive between real ranks, and the check of what arrives."""

import time
from typing import Any

import numpy as np

from ...backend import Array, asarray_like
from ..errors import check_place
from ..trace import POLL
from .library import import_mpi


def is_usable_in_place(array: Array) -> bool:
    """True if MPI can read or write this array in place."""
    return type(array) is np.ndarray and array.flags.c_contiguous


def in_words(description: tuple) -> str:
    """A message in words, for an error."""
    kind, peer, tag, _, label = description
    return f"{kind} rank {peer} (tag {tag}{', part of ' + label if label else ''})"


class MessageMismatch(ValueError):
    """A message does not fit the array that it is received into."""


def explain_error(error: Exception, description: tuple, out: Array | None = None) -> None:
    """Raise MessageMismatch for a message that is too long, ValueError for a read-only `out`.

    Return for any other error, which the caller raises.  An error of MPI usually means that a peer
    has died.  Then wait a second first: mpirun ends this rank, and the guardian reports the cause.
    """
    MPI = import_mpi()
    if not isinstance(error, MPI.Exception):
        check_place(out)
    elif error.Get_error_class() == MPI.ERR_TRUNCATE:
        raise MessageMismatch(f"{in_words(description)}: the message is larger than the receive "
                              f"buffer of {description[3]} bytes") from error
    else:
        time.sleep(1)


def check_size(num_bytes: int, description: tuple) -> None:
    """Refuse a message that is shorter than its buffer."""
    if num_bytes != description[3]:
        raise MessageMismatch(f"{in_words(description)}: {num_bytes} bytes came, but the receive "
                              f"buffer holds {description[3]}: sizes and dtypes must be equal")


class MPIRequest:
    """A Request over one of mpi4py's; `description` is (kind, peer, tag, bytes, label)."""

    def __init__(self, comm: Any, request: Any, description: tuple, out: Array = None,
                 buffer: np.ndarray | None = None, action: int | None = None):
        self.comm, self.request, self.description = comm, request, description
        self.peers = [comm.members[description[1]]]     # world numbers
        self.action = action                        # its index in the rank's program, if logged
        self.out, self.buffer = out, buffer         # of a receive: the array, the host buffer
        self.posted, self.done = time.perf_counter(), False

    def wait(self) -> None:
        """Block until it is done.  Raises ValueError if the message has a different size."""
        self.comm.rank_state.log("wait", self.action)
        engine = self.comm.rank_state.engine
        if engine is None:
            self.block()
        else:                           # this wait advances the Works of this rank
            engine.wait(self)

    def block(self) -> None:
        """Wait inside MPI."""
        if self.done:
            return
        with self.comm.rank_state.wait_for(self.description, self.peers):
            self._ask(self.request.Wait)

    def test(self) -> bool:
        """True if it is done."""
        if self.comm.rank_state.actions and self.comm.rank_state.actions[-1] != POLL:
            self.comm.rank_state.log(*POLL)
        return self.peek()

    def peek(self) -> bool:
        """Like `test`, but not logged in the rank's program."""
        return self.done or self._ask(self.request.Test)

    def _ask(self, question: Any) -> bool:
        status = self.comm.rank_state.status
        try:
            answer = question(status)
        except self.comm.MPI.Exception as error:
            explain_error(error, self.description)
            raise
        if answer:
            self._finish(status)
        return answer

    def _finish(self, status: Any) -> None:
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
