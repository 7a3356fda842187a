"""Copies between a device and its host, on streams beside computation and messages.

    compute    ▓▓ h.0 ▓▓▓▓ h.1 ▓▓▓▓ h.2 ▓▓          one copy after the other on each stream; a
    copy out        ░░░ 0 ░░░░░░ 1 ░░░░░░ 2 ░░      rank that waits for a copy is idle meanwhile

On a simulated rank a copy of n bytes takes latency + n / bandwidth of virtual time.  It begins when
its stream is free and, on the way out, when the operation that makes the array has ended.  On a
real rank the processor copies at once.  Either copy is a span of the trace, named after its
stream.
"""

import time
from collections import deque
from typing import Any

from ...backend import Array
from ...backend.copy_stream import CopyStream
from ..communicator import Communicator
from .communicator import SimulatedCommunicator
from .links import Link

COPY_OUT, COPY_IN = "copy out", "copy in"
HOST_LINK = Link(latency=5e-6, bandwidth=2.5e10)        # PCIe 4.0, 16 lanes: 25 of its 32 GB/s


class Copy:
    """A copy under way; `end` is its virtual time of completion, None until it has begun."""

    __slots__ = ("source", "posted", "end")

    def __init__(self, source: Array, posted: float):
        self.source, self.posted = source, posted
        self.end: Any = None


class SimulatedCopyStream(CopyStream):
    """A stream in the virtual time of a simulated rank; it holds each array until it is copied."""

    def __init__(self, comm: SimulatedCommunicator, name: str, link: Link):
        self.comm, self.name, self.link = comm, name, link
        self.free = 0.0                         # when the last copy that has begun ends
        self.under_way: deque[Copy] = deque()

    def copy(self, source: Array, dest: Array) -> Copy:
        """Copy `source` into `dest` at once, and queue the virtual time that it takes."""
        super().copy(source, dest)
        self.release_finished()
        self.under_way.append(copy := Copy(source, self.comm.now()))
        if self.name == COPY_IN:
            self._begin(copy)
        return copy

    def flush(self) -> None:
        """Begin all queued copies."""
        for copy in self.under_way:
            self._begin(copy)

    def wait(self, copy: Copy) -> None:
        """Let virtual time pass until `copy` is done."""
        for other in self.under_way:
            self._begin(other)
            if other is copy:
                break
        if copy.end > self.comm.now():
            self.comm.rank_state.compute_until(copy.end)
        self.release_finished()

    def release_finished(self) -> None:
        """Release the arrays whose copies are done."""
        now = self.comm.now()
        for copy in self.under_way:
            if copy.posted < now:               # the operation that it was posted in has ended
                self._begin(copy)
        while self.under_way and self.under_way[0].end is not None \
                and self.under_way[0].end <= now:
            self.under_way.popleft()

    def _begin(self, copy: Copy) -> None:
        if copy.end is None:
            me, start = self.comm.rank_state, max(self.free, self.comm.now())
            copy.end = self.free = (start + self.link.latency
                                    + copy.source.nbytes / self.link.bandwidth)
            if me.trace is not None:
                me.trace.spans.append((me.world_rank, self.name, start, copy.end))


class TracedCopyStream(CopyStream):
    """A stream of a real rank: the copy is done when `copy` returns."""

    def __init__(self, comm: Communicator, name: str):
        self.comm, self.name = comm, name

    def copy(self, source: Array, dest: Array) -> Any:
        """Copy `source` into `dest`, and trace it."""
        begun = time.perf_counter()
        super().copy(source, dest)
        if self.comm.trace is not None:
            self.comm.trace.spans.append((self.comm.world_rank, self.name, begun,
                                          time.perf_counter()))


def copy_streams(comm: Communicator, link: Link = HOST_LINK) -> tuple[CopyStream, CopyStream]:
    """(out, in) of this rank; in virtual time, each direction is a `link` of its own."""
    if isinstance(comm, SimulatedCommunicator):
        return SimulatedCopyStream(comm, COPY_OUT, link), SimulatedCopyStream(comm, COPY_IN, link)
    return TracedCopyStream(comm, COPY_OUT), TracedCopyStream(comm, COPY_IN)
