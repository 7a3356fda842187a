"""Arrays in a file that is mapped page by page: only the pages in use are in memory.

    array   [ page | page | page ]      written and read like any other
               ╎      ╎      ╎          `page_out`: the process lets go of its pages,
    file    [ page | page | page ]      which keep their contents and come back when touched

The map is *shared*: its pages belong to the file and not to the process.  So neither the process's
limit on data (RLIMIT_DATA) nor its resident memory counts pages that were paged out.  The system
writes them to the disk, unless they are freed before.  Freed places are used again: a training step
saves the same sizes each time, so the file grows only once.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .allocation import record_allocation
from .arrays import Array, l2_blocks
from .views import storage

PAGE = mmap.PAGESIZE
LEAST_GROWTH = 1 << 20


class DiskFull(MemoryError):
    """The folder of a MappedFile has no room for more; the message is one line."""


class _Chunk(mmap.mmap):
    """One mapped piece of the file; `address` is where it lies in memory."""

    address: int

    def page_out(self, start: int, num_bytes: int) -> None:
        """Drop these pages from memory; the file keeps them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = start // PAGE * PAGE
            self.madvise(mmap.MADV_DONTNEED, first, start + num_bytes - first)


class MappedFile:
    """Arrays in a file without a name in `folder` (default: the system's for temporary files).

    The file is gone with the process, whatever ends it.  Raises DiskFull when the disk is full,
    OSError for a folder that cannot be written to.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = Path(folder or tempfile.gettempdir())
        self.file = tempfile.TemporaryFile(dir=self.folder)     # noqa: SIM115  without a name
        self.size = 0                                           # of the file
        self._rest: tuple[_Chunk | None, int, int] = None, 0, 0         # not used yet: start, stop
        self._spare: dict[int, list[tuple[_Chunk, int]]] = {}           # by size: places given back

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """A new array in the file, not cleared."""
        shape, dtype = tuple(np.atleast_1d(np.asarray(shape, int))), np.dtype(dtype)
        num_bytes = max(1, int(np.prod(shape)) * dtype.itemsize)
        size = -(-num_bytes // PAGE) * PAGE             # whole pages, paged out without neighbours
        spare = self._spare.setdefault(size, [])
        chunk, offset = place = spare.pop() if spare else self._cut(size)
        array = np.ndarray(shape, dtype, chunk, offset)
        weakref.finalize(array, _give_back, spare, place, size).atexit = False
        return array

    def zeros(self, like: Array, shape: Any = None) -> np.ndarray:
        """Zeros in the file, of the dtype of `like`: an allocator for `backend.allocating_with`."""
        array = self.empty(like.shape if shape is None else shape, like.dtype)
        array[...] = 0
        page_out(array)
        return record_allocation("offloaded", array)

    def _cut(self, size: int) -> tuple[_Chunk, int]:
        chunk, start, stop = self._rest
        if start + size > stop:
            chunk, start, stop = self._grow(size)
        self._rest = chunk, start + size, stop
        return chunk, start

    def _grow(self, least: int) -> tuple[_Chunk, int, int]:
        """Map more of the file: as much again as there is, or at least `least` bytes."""
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
        raise DiskFull(f"no room for {least:,} bytes more in {self.folder}, where "
                       f"{self.size:,} are offloaded ({error.strerror}): choose another folder "
                       "with memory.offload_dir") from error


def _reserve(file: int, start: int, num_bytes: int) -> None:
    """Reserve disk blocks: a full disk is an error now, but a crash once a page is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, num_bytes)
    else:
        for offset in range(start, start + num_bytes, LEAST_GROWTH):
            os.pwrite(file, bytes(min(LEAST_GROWTH, start + num_bytes - offset)), offset)


def _give_back(spare: list, place: tuple[_Chunk, int], num_bytes: int) -> None:
    """Free the place of an array that is gone, and drop its pages."""
    chunk, offset = place
    chunk.page_out(offset, num_bytes)
    spare.append(place)


def is_mapped(array: Array) -> bool:
    """True if the array is in a MappedFile."""
    return isinstance(getattr(storage(array), "base", None), _Chunk)


def resident_blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The `l2_blocks` of 1-D arrays; those in a MappedFile are paged out after each block.

    The others stay where they are.
    """
    mapped, done = [array for array in arrays if is_mapped(array)], 0
    for block in l2_blocks(*arrays):
        yield block
        done += block[0].shape[0]
        if mapped:
            page_out(*[array[:done] for array in mapped])       # all: neighbours come with a page


def page_out(*arrays: Array) -> None:
    """Drop the pages of those contiguous `arrays` that are in a MappedFile; leave the others."""
    for array in arrays:
        if array.nbytes and is_mapped(array):
            chunk = storage(array).base
            chunk.page_out(array.__array_interface__["data"][0] - chunk.address, array.nbytes)
