"""Read the arrays of an .npz, after comparing every claimed size with the bytes of the file.

    zip member   │ \\x93NUMPY, {'descr': '<f4', 'shape': (50257, 768), …} │ 154,389,504 bytes │
                   └ a header may claim any shape: it is compared with the bytes that follow

An .npz is a zip of .npy files, which `np.savez` stores uncompressed.  So no array can be larger
than the file.  The reader allocates nothing for an array that claims to be larger.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import IO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

DTYPE_KINDS = "biuf"          # booleans, integers and floats; never objects


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name: all, or those in `names` if any are given.

    Raises ValueError for a file that `np.savez` cannot have written.  For a damaged file, zipfile,
    NumPy and Python's parser raise exceptions of many types.
    """
    with ZipFile(path) as archive:
        members = archive.infolist()
        check_sizes(members, path.stat().st_size)
        return {name: read_array(archive, member) for member in members
                if (name := member.filename.removesuffix(".npy")) in (names or [name])}


def check_sizes(members: list[ZipInfo], file_size: int) -> None:
    """Raise ValueError if members claim more than the file has, share a name, or are compressed."""
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two arrays have one name")
    if any(member.compress_type != ZIP_STORED or member.compress_size != member.file_size
           for member in members):
        raise ValueError("its arrays are compressed, which np.savez does not do")
    claimed = sum(member.file_size for member in members)
    if claimed > file_size:
        raise ValueError(f"its arrays claim {claimed:,} bytes, but the file has {file_size:,}")


def read_array(archive: ZipFile, member: ZipInfo) -> np.ndarray:
    """One array.  Raises ValueError if its header claims more or fewer bytes than there are."""
    with archive.open(member) as file:
        shape, dtype = read_header(file)
        there = member.file_size - file.tell()
        if dtype.kind not in DTYPE_KINDS or min(shape, default=0) < 0 \
                or math.prod(shape) * dtype.itemsize != there:
            raise ValueError(f"{member.filename} claims to be {dtype} {shape}, but has {there:,} "
                             "bytes")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, dtype) of an .npy of version 1.0, which NumPy writes for plain arrays.

    Raises ValueError for other versions.
    """
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"an array is of .npy version {version}, not (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype
