"""A communicator that notes down the calls and waits of its rank, for the observer's thread.

Messages of a program travel with a header: the sender's dtype, shape and line.  They are sent
synchronously, so that a send blocks until it is received, as on a simulated cluster.  Messages
inside a collective are only counted: all ranks' calls are compared instead.

A message is known by its channel, (communicator, source, dest, tag), and its number there.  The
n-th send belongs to the n-th receive, since messages of one channel arrive in order.  So a rank
that waits for the n-th, while its peer has posted fewer, waits for something that has not begun.
"""

import json
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....backend import Array, to_host
from ...communicator import Communicator, Labelled, Request, some_of
from ...errors import NUM_TAGS, check_message
from ...simulated.matching import message_mismatch
from ...simulated.mismatch import arguments_of
from ...work import Work
from ..communicator import MPICommunicator, MPIProgressEngine
from ..request import MessageMismatch, MPIRequest
from .mismatch import Log
from .places import find_place, place_name

HEADER = 1024               # bytes: dtype, shape and line of a message
SHORT, ROW = 1 << 14, 512   # most bytes that a checksum reads one by one; 8-byte words in a row

Post = tuple                # (communicator, kind, peer, tag, number): a send or receive that began


class PendingWait(tuple):
    """The description of a wait; it ends when all posts of one of the `alternatives` are there."""

    alternatives: Sequence[Sequence[Post]] = ()


class CallRecord:
    """The notes of a rank, which the thread of its `observer` reads."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.posts: dict[str, dict[tuple, int]] = {}    # communicator -> (kind, peer, tag) -> count
        self.current: Log | None = None                 # of the collective that the program is in
        self.exchange: PendingWait | None = None               # of the sendrecv that it is in
        self.pending: dict[int, Any] = {}               # requests of the program
        self.observer: Any = None


class CheckedCommunicator(MPICommunicator):
    """An MPICommunicator under MINIPAR_CHECK=1."""

    num_kinds = 2                   # messages of collectives, and of the program
    inside = False                  # a collective
    num_splits = 0
    started = "an unknown line"     # of a Work: the line of the program that started it

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        if self.rank_state.record is None:
            self.rank_state.record = CallRecord()
        self.record: CallRecord = self.rank_state.record
        # of the program's messages: the upper half
        self.own_tags = self.MPI.COMM_WORLD.Get_attr(self.MPI.TAG_UB) // NUM_TAGS // 2 * NUM_TAGS
        if not self.record.logs:
            self.enroll("world", {})

    def enroll(self, key: str, posts: dict) -> None:
        """Give this communicator the name `key`, equal on all ranks; `posts` counts by channel."""
        self.key, self.posts = key, posts
        self.log = self.record.logs[key] = Log(self, key, self.members)
        if " work " not in key:             # a Work has tags of its own among its communicator's
            self.record.posts[key] = posts

    def with_tags(self, index: int) -> "CheckedCommunicator":
        """The same ranks, with tags of its own."""
        comm: Any = super().with_tags(index)
        comm.enroll(f"{self.key} work {index}", self.posts)
        comm.key = self.key
        return comm

    def make_progress_engine(self) -> Any:
        """An engine whose Works (non-blocking collectives) check their arrays around each pause."""
        return CheckedEngine(self.rank_state)

    def split(self, color: int | None, key: int | None = None) -> "CheckedCommunicator | None":
        """Collective.  A communicator of the ranks with this rank's `color`."""
        with self.collective("split"):
            part: Any = super().split(color, key)
        self.num_splits += 1
        if part is not None:
            part.enroll(f"{self.key}.{self.num_splits}/{color}", {})
        return part

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> Labelled:
        """Context of a collective, whose call is noted down."""
        if self.size > 1:
            self.log.queue.append((arguments_of(operation, array, uneven, options),
                                   find_place(sys._getframe(1)), self.started))
        return CheckedCall(self, operation + self.axes)

    def post(self, description: tuple) -> PendingWait:
        """Count a send or receive that has begun; return its description."""
        kind, peer, tag = description[:3]
        tag += self.first_tag if self.inside else self.first_tag + self.own_tags
        posts, channel = self.posts, (kind, peer, tag)
        posts[channel] = number = posts.get(channel, 0) + 1
        wait = PendingWait(description)
        wait.alternatives = ((self, kind, peer, tag, number),),
        return wait

    def isend(self, array: Array, dest: int, tag: int = 0) -> MPIRequest:
        """Begin to send `array`; outside collectives with a header."""
        if self.inside:
            request = super().isend(array, dest, tag)
            request.description = self.post(request.description)
            return request
        check_message(self, array, dest, "dest", tag)
        about = [str(array.dtype)[:300], array.shape, array.nbytes,
                 place_name(find_place(sys._getframe()))[-500:]]
        header = np.frombuffer(json.dumps(about).encode().ljust(HEADER), np.uint8)
        buffer, BYTE = np.ascontiguousarray(to_host(array)), self.MPI.BYTE
        full_tag = tag + self.first_tag + self.own_tags
        first = self.mpi_comm.Isend([header, BYTE], dest, full_tag)
        request = self.mpi_comm.Issend([buffer, BYTE], dest, full_tag)
        description = self.post(("send to", dest, tag, buffer.nbytes, self.label))
        action = self.rank_state.log("send", self.group, tag, dest, buffer.nbytes)
        return CheckedRequest(self, request, description, buffer=buffer, action=action,
                              header=header, first=first, array=array)

    def irecv(self, out: Array, source: int, tag: int = 0) -> MPIRequest:
        """Begin to receive into `out`; outside collectives a message with a header."""
        if self.inside:
            buffer = out
            if self.first_tag:      # while a Work pauses, no message may change its arrays either
                check_message(self, out, source, "source", tag)
                buffer = np.empty(out.shape, out.dtype)
            request = super().irecv(buffer, source, tag)
            request.out, request.description = out, self.post(request.description)
            return request
        check_message(self, out, source, "source", tag)
        header, buffer = np.empty(HEADER, np.uint8), np.empty(out.shape, out.dtype)
        full_tag, BYTE = tag + self.first_tag + self.own_tags, self.MPI.BYTE
        first = self.mpi_comm.Irecv([header, BYTE], source, full_tag)
        request = self.mpi_comm.Irecv([buffer, BYTE], source, full_tag)
        description = self.post(("receive from", source, tag, buffer.nbytes, self.label))
        action = self.rank_state.log("recv", self.group, tag, source, buffer.nbytes)
        return CheckedRequest(self, request, description, out, buffer, action,
                              header=header, first=first, array=out)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Exchange: inside a collective by one call of the library, where that is possible."""
        me = self.rank_state
        if not (self.inside and me.trace is None and me.engine is None
                and type(array) is type(out) is np.ndarray
                and array.flags.c_contiguous and out.flags.c_contiguous):
            check_message(self, array, dest, "dest", tag)       # else one half would be under way
            check_message(self, out, source, "source", tag)
            Communicator.sendrecv(self, array, dest, out, source, tag)
            return
        wait = self.post(("receive from", source, tag, out.nbytes, self.label))
        sending = self.post(("send to", dest, tag, array.nbytes, self.label))
        wait.alternatives = [[*wait.alternatives[0], *sending.alternatives[0]]]
        self.record.exchange = wait
        super().sendrecv(array, dest, out, source, tag)

    def wait_any(self, requests: Sequence[Request | None]) -> int:
        """Block until one of the requests is done; return its index."""
        live = some_of(requests)
        description = live[0][1].description
        wait = PendingWait(description)
        wait.alternatives = [posts for _, request in live
                             for posts in request.description.alternatives]
        live[0][1].description = wait
        try:
            return super().wait_any(requests)
        finally:
            live[0][1].description = description


class CheckedCall(Labelled):
    """The context of a collective that is checked."""

    __slots__ = ("was_inside", "before")

    def __enter__(self) -> None:
        comm: Any = self.comm
        Labelled.__enter__(self)
        self.was_inside, comm.inside = comm.inside, True
        self.before = comm.record.current
        if not comm.first_tag:
            comm.record.current = comm.log

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        comm: Any = self.comm
        comm.inside, comm.label = self.was_inside, self.outer
        if isinstance(error, MessageMismatch):
            comm.record.observer.wait_for_report()      # the calls may differ, which says more
        if not comm.first_tag:
            comm.record.current = self.before


def checksum(array: Array) -> int:
    """A checksum of the bytes of an array; for a long array, of sums of its words, which is faster.

    The words stand in rows of ROW.  Sums of the rows and of the columns show a change of elements,
    and mostly also that two have changed places.
    """
    data = np.ascontiguousarray(to_host(array)).reshape(-1).view(np.uint8)
    words = data[:data.size // (8 * ROW) * 8 * ROW * (data.size > SHORT)].view(np.uint64)
    found, rows = zlib.crc32(data[words.nbytes:].data), words.reshape(-1, ROW)
    for sums in (rows.sum(axis=0), rows.sum(axis=1)):
        found = zlib.crc32(sums.data, found)
    return found


def touched_error(comm: Communicator, what: str) -> ValueError:
    """The error of an array that has changed while `what` used it."""
    return ValueError(f"rank {comm.world_rank} changed the array of {what} before wait() returned: "
                      "wait first, or give a copy")


class CheckedRequest(MPIRequest):
    """A send or receive whose array must stay as it is until `wait` has returned."""

    def __init__(self, *args: Any, header: np.ndarray, first: Any, array: Array, **options: Any):
        super().__init__(*args, **options)
        self.header, self.first, self.array = header, first, array
        self.checksum, self.started = checksum(array), place_name(find_place(sys._getframe()))
        self.comm.record.pending[id(self)] = self

    def _ask(self, question: Any) -> bool:
        try:
            return super()._ask(question)
        except MessageMismatch as error:
            mismatch = error
        self.comm.record.pending.pop(id(self), None)
        raise self.header_mismatch() or mismatch        # the header says more

    def _finish(self, status: Any) -> None:
        del self.comm.record.pending[id(self)]
        mismatch = self.header_mismatch()
        if mismatch:
            raise mismatch
        if checksum(self.array) != self.checksum:
            begun = "isend to" if self.out is None else "irecv from"
            raise touched_error(self.comm, f"its {begun} rank {self.peers[0]} (tag "
                                f"{self.description[2]}) at {self.started}")
        super()._finish(status)

    def header_mismatch(self) -> MessageMismatch | None:
        """The error if the message is not what this rank receives."""
        self.first.Wait()
        if self.out is None:
            return None
        dtype, shape, num_bytes, place = json.loads(self.header.tobytes())
        if (dtype, num_bytes) == (str(self.out.dtype)[:300], self.out.nbytes):
            return None
        error = MessageMismatch(message_mismatch(
            self.peers[0], f"{dtype} {tuple(shape)}", self.comm.world_rank,
            f"{self.out.dtype} {self.out.shape}"))
        error.add_note(f"received at {self.started}, sent at {place}")
        return error


class CheckedWork(Work):
    """A Work whose arrays must stay as they are while it pauses."""

    arrays: Sequence[Array] = ()
    checksums: Sequence[int] = ()

    def resume(self, *args: Any, **options: Any) -> None:
        """Run it until it must wait again."""
        if args:
            self.comm = args[0]
            self.arrays = [each for each in (*args[1:], *options.values())
                           if hasattr(each, "nbytes")]
        else:
            self.compare()
        super().resume(*args, **options)
        self.checksums = [checksum(array) for array in self.arrays]

    def compare(self) -> None:
        """Raise ValueError if the program has changed an array meanwhile."""
        if self.checksums != [checksum(array) for array in self.arrays]:
            self.arrays, self.checksums = (), []
            raise touched_error(self.comm, f"the Work that it started at {self.comm.started}")

    def wait(self) -> Any:
        """Block until it is done; return what the function returned."""
        self.compare()
        return super().wait()


class CheckedEngine(MPIProgressEngine):
    """An engine of CheckedWorks."""

    work_type = CheckedWork
