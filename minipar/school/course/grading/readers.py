"""The files of a folder, an archive or a single file: each path, with a function that reads it.

Hand-ins come from strangers.  So no link is followed, and nothing is unpacked onto the disk.  A
reader returns at most MAX_FILE bytes, whatever the archive claims about its size.
"""

import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from ...toml_files import SchoolError
from ..checker.ranks.frames import clean

MAX_FILE = 1 << 20                          # bytes of a file
MAX_TAR = 128 << 20                         # bytes of a tar archive, unpacked
ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
PACKERS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}      # by the first bytes
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
PYTHON = re.compile(r"\.py([^\w/\\]|[\d_]|txt|download|copy)*\Z", re.IGNORECASE)
LITTER = {"__macosx", "__pycache__", "site-packages", "node_modules", "venv", "env", "virtualenv",
          "lost+found", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "$recycle.bin",
          "@eadir", "system volume information", "submission_metadata.yml"}
Readers = dict[str, Callable[[], bytes] | None]


def is_litter(name: str) -> bool:
    """True for files and folders that systems, editors and tools leave behind."""
    return (name.startswith((".", "~$")) and name != ".." or name.casefold() in LITTER
            or name.endswith((".pyc", ".egg-info", "~")))


def is_archive(path: str) -> bool:
    """True if a name is that of an archive that can be read."""
    return path.casefold().endswith(ARCHIVES)


def is_python(path: str) -> bool:
    """True for names of Python files, also if a system has added to them: .PY, .py.txt, .py (1)."""
    return PYTHON.search(path) is not None


def readers(place: Path, stack: ExitStack) -> Readers:
    """The readers of a hand-in's files, by path; None for a file that may not be read."""
    if place.is_dir():
        return in_folder(place)
    if place.is_file() and is_python(place.name):
        return {place.name: reader(place)}
    if place.is_file() and is_archive(place.name):
        with place.open("rb") as file:
            head = file.read(8)
        return zipped(place, stack) if head.startswith(b"PK") else tarred(place, head, stack)
    raise SchoolError(f"{clean(place)} is no submission: give a folder, a .py file, or one of "
                      f"{', '.join(ARCHIVES)}")


def reader(path: Path) -> Callable[[], bytes] | None:
    """A function that reads a file on the disk; None for a file that is too large."""
    return path.read_bytes if path.is_file() and path.stat().st_size <= MAX_FILE else None


def in_folder(place: Path) -> Readers:
    """The readers of a folder, without the folders that are litter.  Raises OSError."""
    def fail(error: OSError) -> None:
        raise error

    found: Readers = {}
    for top, folders, names in os.walk(place, onerror=fail):
        folders[:] = [name for name in folders if not is_litter(name)]
        for name in (*names, *(name for name in folders if Path(top, name).is_symlink())):
            path = Path(top, name)
            found[path.relative_to(place).as_posix()] = \
                None if path.is_symlink() else reader(path)
    return found


def zipped(place: Path, stack: ExitStack) -> Readers:
    """The readers of a zip archive, open as long as `stack`."""
    archive = stack.enter_context(zipfile.ZipFile(place))
    entries = [entry for entry in archive.infolist() if not entry.filename.endswith(("/", "\\"))]
    if any(entry.flag_bits & 1 or entry.compress_type not in PLAIN for entry in entries):
        raise SchoolError(f"{clean(place)} needs a password, or is packed in an unusual way: hand "
                          "in a plain .zip")

    def read(entry: zipfile.ZipInfo) -> bytes:
        with archive.open(entry) as file:
            return file.read(MAX_FILE)
    return {entry.filename: (lambda entry=entry: read(entry))
            if entry.file_size <= MAX_FILE and not stat.S_ISLNK(entry.external_attr >> 16) else None
            for entry in entries}


def tarred(place: Path, head: bytes, stack: ExitStack) -> Readers:
    """The readers of a tar archive, unpacked in memory: a small file may hide a huge one."""
    packers = [name for first, name in PACKERS.items() if head.startswith(first)]
    unpack = import_module(packers[0]).open if packers else Path.open
    with unpack(place, "rb") as file:
        data = file.read(MAX_TAR + 1)
    if len(data) > MAX_TAR:
        raise SchoolError(f"{clean(place)} has more than {MAX_TAR:,} bytes, unpacked: hand in the "
                          ".py files alone")
    try:
        archive = stack.enter_context(tarfile.TarFile(fileobj=io.BytesIO(data)))
    except tarfile.ReadError:
        raise SchoolError(f"{clean(place)} is neither a zip nor a tar archive, or it is broken: "
                          "hand it in again") from None
    return {entry.name: (lambda entry=entry: archive.extractfile(entry).read())
            if entry.isfile() and entry.size <= MAX_FILE else None
            for entry in archive if not entry.isdir()}
