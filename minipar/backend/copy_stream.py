"""Copies between a device's memory and the host's, beside the computation.

    compute      ▓▓ h.0 ▓▓▓▓ h.1 ▓▓▓▓ h.2 ▓▓
    copy stream       ░░░ 0 ░░░░░░ 1 ░░░░░░

On a GPU the copies run on a CUDA stream of their own, to and from pinned pages of the host.
Without a GPU they are done at once; `comm/simulated` has a stream in virtual time.
"""

from collections import deque
from typing import Any

import numpy as np

from .arrays import Array, is_gpu
from .mapped_file import page_out


class CopyStream:
    """A sequence of copies.  This base does each copy at once, in the calling program."""

    def copy(self, source: Array, dest: Array) -> Any:
        """Begin to copy; return the handle for `wait`.  The stream holds both arrays until then."""
        dest[...] = source
        page_out(source, dest)

    def flush(self) -> None:
        """Begin the queued copies now, as no operation is running that they must wait for."""

    def wait(self, copy: Any) -> None:
        """Return when that copy is done."""

    def release_finished(self) -> None:
        """Drop the arrays of copies that are done."""


def empty_pinned(shape: Any, dtype: Any) -> np.ndarray:
    """A new host array in pinned pages, which a GPU copies to and from while it computes."""
    import cupyx
    return cupyx.empty_pinned(shape, dtype)


class CudaCopyStream(CopyStream):
    """Copies between a GPU and pinned host arrays, on a CUDA stream of their own.

    `wait` blocks the program; with `in_order` it blocks only what the GPU computes from then on.
    """

    def __init__(self, in_order: bool = False):
        import cupy
        self.current, self.in_order = cupy.cuda.get_current_stream, in_order
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.held: deque[tuple[Any, Array, Array]] = deque()

    def copy(self, source: Array, dest: Array) -> Any:
        """Copy what was computed so far, and hold both arrays until that is done.

        A freed array's memory would be reused while the copy still reads or writes it.
        """
        self.stream.wait_event(self.current().record())
        if is_gpu(source):
            source.get(self.stream, out=dest, blocking=False)
        else:
            dest.set(source, self.stream)
        event = self.stream.record()
        self.held.append((event, source, dest))
        self.release_finished()
        return event

    def wait(self, event: Any) -> None:
        """Wait for the copy's event."""
        if self.in_order:
            self.current().wait_event(event)
        else:
            event.synchronize()
            self.release_finished()

    def release_finished(self) -> None:
        """Drop the arrays of copies whose events have happened."""
        while self.held and self.held[0][0].done:
            self.held.popleft()
