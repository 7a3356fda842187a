"""Memory outside: a file that is mapped page by page, of which only what is in use is resident.

    array   [ page | page | page ]      written, read like any other
               ╎      ╎      ╎          `page_out`: the process lets go of its pages,
    file    [ page | page | page ]      which keep their contents and come back when touched

The map is *shared*: its pages belong to the file and not to the process, whose limit on data
(RLIMIT_DATA) and resident memory do not count what was paged out.  The system writes them to the
disk, or not at all if they are freed before it comes to that.  Places that are freed are used
again: a training step, which saves the same sizes each time, makes the file grow only once.

Beside a GPU the memory outside is the host's, in pinned pages, and copies run on a stream of their
own (`pinned`, `CopyStream`).
"""

import mmap
import os
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from . import Array, allocated, is_gpu, storage

PAGE = mmap.PAGESIZE
LEAST_GROWTH = 1 << 20


class NoRoom(MemoryError):
    """The folder has no room for more; one line."""


class _Chunk(mmap.mmap):
    """A piece of the file, mapped in one go; `address` is where."""

    address: int

    def page_out(self, start: int, num_bytes: int) -> None:
        """Let go of these pages."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = start // PAGE * PAGE
            self.madvise(mmap.MADV_DONTNEED, first, start + num_bytes - first)


class MappedFile:
    """Arrays in a file without a name in `folder` (default: the system's for temporary files).

    It is gone with the process, whatever ends it.  Raises NoRoom when the disk is full, OSError for
    a folder that cannot be written to.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = Path(folder or tempfile.gettempdir())
        self.file = tempfile.TemporaryFile(dir=self.folder)     # noqa: SIM115  without a name
        self.size = 0                                           # of the file
        self._rest: tuple[_Chunk | None, int, int] = None, 0, 0         # not used yet: start, stop
        self._spare: dict[int, list[tuple[_Chunk, int]]] = {}           # by size: places given back

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """A new array in the file, of whatever was there."""
        shape, dtype = tuple(np.atleast_1d(np.asarray(shape, int))), np.dtype(dtype)
        num_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        size = -(-num_bytes // PAGE) * PAGE             # whole pages, paged out without neighbours
        spare = self._spare.setdefault(size, [])
        chunk, offset = place = spare.pop() if spare else self._cut(size)
        array = np.ndarray(shape, dtype, chunk, offset)
        weakref.finalize(array, _give_back, spare, place, size).atexit = False
        return array

    def zeros(self, like: Array, shape: Any = None) -> np.ndarray:
        """A maker (`backend.making`): zeros in the file, of the dtype of `like`."""
        array = self.empty(like.shape if shape is None else shape, like.dtype)
        array[...] = 0
        page_out(array)
        return allocated("offloaded", array)

    def _cut(self, size: int) -> tuple[_Chunk, int]:
        chunk, start, stop = self._rest
        if start + size > stop:
            chunk, start, stop = self._grow(size)
        self._rest = chunk, start + size, stop
        return chunk, start

    def _grow(self, least: int) -> tuple[_Chunk, int, int]:
        """Map more of the file, as much again as there is or at least what is wanted now."""
        error = None
        for more in dict.fromkeys((max(least, self.size, LEAST_GROWTH), least)):
            more = -(-more // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            try:
                _reserve(self.file.fileno(), self.size, more)
                chunk = _Chunk(self.file.fileno(), more, offset=self.size)
            except OSError as failed:
                error = failed
                continue
            chunk.address = np.ndarray(1, np.uint8, chunk).__array_interface__["data"][0]
            self.size += more
            return chunk, 0, more
        raise NoRoom(f"no room for {least:,} bytes more in {self.folder}, where "
                     f"{self.size:,} are offloaded ({error.strerror}): choose another folder with "
                     "--offload-dir") from error


def _reserve(file: int, start: int, num_bytes: int) -> None:
    """Have the disk's blocks now: a full disk is an error here, and a crash when a page is written.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, num_bytes)
    else:
        for offset in range(start, start + num_bytes, LEAST_GROWTH):
            os.pwrite(file, bytes(min(LEAST_GROWTH, start + num_bytes - offset)), offset)


def _give_back(spare: list, place: tuple[_Chunk, int], num_bytes: int) -> None:
    """An array is gone: its place is free, its pages are let go of."""
    chunk, offset = place
    chunk.page_out(offset, num_bytes)
    spare.append(place)


def is_mapped(array: Array) -> bool:
    """Whether it is in a MappedFile."""
    return isinstance(getattr(storage(array), "base", None), _Chunk)


def page_out(*arrays: Array) -> None:
    """Let go of the pages of `arrays`, contiguous ones, that are in a MappedFile; of others not."""
    for array in arrays:
        if array.nbytes and is_mapped(array):
            chunk = storage(array).base
            chunk.page_out(array.__array_interface__["data"][0] - chunk.address, array.nbytes)


class CopyLane:
    """A way between memories on which copies are done at once: they take no time but their own."""

    def copy(self, source: Array, dest: Array) -> Any:
        """Begin to copy; returns what `wait` takes.  The lane holds what it still needs."""
        dest[...] = source
        page_out(source, dest)

    def begin(self) -> None:
        """Nothing is being computed: what was to be copied is there, and can leave now."""

    def wait(self, copy: Any) -> None:
        """Return when that copy is done."""

    def let_go(self) -> None:
        """Hold no longer what was copied meanwhile."""


def pinned(shape: Any, dtype: Any) -> np.ndarray:
    """A new array on the host, in pages that stay in place: a GPU copies to and from them while
    it computes."""
    import cupyx
    return cupyx.empty_pinned(shape, dtype)


class CopyStream(CopyLane):
    """A lane of copies between a GPU and pinned arrays, beside what the GPU computes.

    `wait` lets the program wait; or, if `in_order` only, what the GPU computes from then on.
    """

    def __init__(self, in_order: bool = False):
        import cupy
        self.current, self.in_order = cupy.cuda.get_current_stream, in_order
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.held: deque[tuple[Any, Array, Array]] = deque()

    def copy(self, source: Array, dest: Array) -> Any:
        """See CopyLane: copies what was computed so far.

        Both arrays are held until it is done: once freed, their memory would be written to.
        """
        self.stream.wait_event(self.current().record())
        if is_gpu(source):
            source.get(self.stream, out=dest, blocking=False)
        else:
            dest.set(source, self.stream)
        event = self.stream.record()
        self.held.append((event, source, dest))
        self.let_go()
        return event

    def wait(self, event: Any) -> None:
        """See the class."""
        if self.in_order:
            self.current().wait_event(event)
        else:
            event.synchronize()
            self.let_go()

    def let_go(self) -> None:
        """See CopyLane."""
        while self.held and self.held[0][0].done:
            self.held.popleft()
