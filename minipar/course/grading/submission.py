"""A submission: the Python files that a student handed in, as texts.  Nothing of it is run here."""

import gzip
import hashlib
import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..checker.ranks.frames import clean
from .tasks import CourseError

MAX_FILE, MAX_FILES = 1 << 20, 64           # bytes of a file, number of files
MAX_TAR = 128 << 20                         # bytes of a tar archive, unpacked
MOST_PROBLEMS = 10                          # that are told
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
NOT_OWN = {"__MACOSX", "site-packages"}     # folders, and those whose names begin with a dot
Readers = dict[str, Callable[[], bytes] | None]


class Submission(NamedTuple):
    """The modules of a submission by name, and its digest: the same for the same files."""

    name: str
    files: dict[str, str]
    digest: str
    problems: tuple[str, ...]       # files that were left out, and why


def read_submission(place: Path) -> Submission:
    """Read a folder, a .zip or .tar, or one .py file.  Raises CourseError if it is none of these.

    Of two files with the same name, in different folders, the one nearest to the top counts.
    Links are not followed.  A file that is too large, or not text, is left out, and so is every
    folder of a virtual environment, or with a name that begins with a dot.
    """
    with ExitStack() as stack:
        try:
            files, problems = read_files(readers(place, stack))
        except CourseError:
            raise
        except Exception as error:      # an archive can be broken in every way
            raise CourseError(f"{clean(place)} cannot be read ({clean(error)}): hand it in again"
                              ) from None
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"and {len(problems) - MOST_PROBLEMS} more"]
    return Submission(clean(place.name), files, digest, tuple(map(clean, problems)))


def read_files(found: Readers) -> tuple[dict[str, str], list[str]]:
    """(the modules by name, what was left out); a file is read only if it is taken."""
    files: dict[str, str] = {}
    problems = []
    parts = {path: PurePosixPath(path.replace("\\", "/")).parts for path in found}
    for path in sorted(found, key=lambda path: (len(parts[path]), path)):
        name, read = parts[path][-1].removesuffix(".py"), found[path]
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in files \
                or any(part.startswith(".") or part in NOT_OWN for part in parts[path]):
            continue
        if len(files) == MAX_FILES:
            problems.append(f"{path} is beyond the first {MAX_FILES} files")
        elif read is None:
            problems.append(f"{path} is a link, or has more than {MAX_FILE:,} bytes")
        else:
            try:
                files[name] = read().decode("utf-8-sig")
            except UnicodeDecodeError:
                problems.append(f"{path} is not text in UTF-8")
    return files, problems


def readers(place: Path, stack: ExitStack) -> Readers:
    """What reads each Python file, by path; None for a file that may not be read."""
    if place.is_dir():
        inside = {path: not path.is_symlink() and path.is_file()
                  and path.resolve().is_relative_to(place.resolve())
                  for path in place.rglob("*.py")}
        return {path.relative_to(place).as_posix():
                path.read_bytes if good and path.stat().st_size <= MAX_FILE else None
                for path, good in inside.items()}
    if place.suffix == ".py" and place.is_file():
        return {place.name: place.read_bytes if place.stat().st_size <= MAX_FILE else None}
    if place.is_file() and place.name.endswith(ARCHIVES):
        return zipped(place, stack) if place.suffix == ".zip" else tarred(place, stack)
    raise CourseError(f"{clean(place)} is no submission: give a folder, a .py file, or one of "
                      f"{', '.join(ARCHIVES)}")


def zipped(place: Path, stack: ExitStack) -> Readers:
    """The same for a zip archive, open as long as `stack`."""
    archive = stack.enter_context(zipfile.ZipFile(place))
    return {entry.filename: (lambda entry=entry: archive.read(entry))
            if entry.file_size <= MAX_FILE and not stat.S_ISLNK(entry.external_attr >> 16) else None
            for entry in archive.infolist() if entry.filename.endswith(".py")}


def tarred(place: Path, stack: ExitStack) -> Readers:
    """The same for a tar archive, unpacked in memory: a small file can be a huge one, packed."""
    opened = Path.open if place.suffix == ".tar" else gzip.open
    with opened(place, "rb") as file:
        data = file.read(MAX_TAR + 1)
    if len(data) > MAX_TAR:
        raise CourseError(f"{clean(place)} has more than {MAX_TAR:,} bytes, unpacked: hand in the "
                          ".py files alone")
    archive = stack.enter_context(tarfile.TarFile(fileobj=io.BytesIO(data)))
    return {entry.name: (lambda entry=entry: archive.extractfile(entry).read())
            if entry.isfile() and entry.size <= MAX_FILE else None
            for entry in archive if entry.name.endswith(".py")}
