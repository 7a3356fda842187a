"""A submission: the Python files that a student handed in, as texts.  Nothing of it is run here."""

import hashlib
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .tasks import CourseError

MAX_FILE, MAX_FILES = 1 << 20, 64           # bytes of a file, number of files
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")


class Submission(NamedTuple):
    """The modules of a submission by name, and its digest: the same for the same files."""

    name: str
    files: dict[str, str]
    digest: str
    problems: tuple[str, ...]       # files that were left out, and why


def read_submission(place: Path) -> Submission:
    """Read a folder, a .zip or .tar, or one .py file.  Raises CourseError if it is none of these.

    Of two files with the same name, in different folders, the one nearest to the top counts.
    Links are not followed; a file that is too large, or not text, is left out.
    """
    files: dict[str, str] = {}
    problems = []
    found = sorted(entries(place), key=lambda entry: (entry[0].count("/"), entry[0]))
    for path, data in found:
        name = path.rpartition("/")[2].removesuffix(".py")
        if not path.endswith(".py") or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in files:
            continue
        if data is None:
            problems.append(f"{path} is a link, or has more than {MAX_FILE:,} bytes")
        elif len(files) == MAX_FILES:
            problems.append(f"{path} is beyond the first {MAX_FILES} files")
        else:
            try:
                files[name] = data.decode()
            except UnicodeDecodeError:
                problems.append(f"{path} is not text in UTF-8")
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    return Submission(place.name, files, digest, tuple(problems))


def entries(place: Path) -> Iterator[tuple[str, bytes | None]]:
    """(path, content) of each file; None for one that is not read."""
    if place.is_dir():
        for path in place.rglob("*.py"):
            inside = not path.is_symlink() and path.is_file() \
                and path.resolve().is_relative_to(place.resolve())
            good = inside and path.stat().st_size <= MAX_FILE
            yield str(path.relative_to(place)), path.read_bytes() if good else None
    elif place.suffix == ".py" and place.is_file():
        yield place.name, place.read_bytes() if place.stat().st_size <= MAX_FILE else None
    elif place.is_file() and place.name.endswith(ARCHIVES):
        try:
            yield from zipped(place) if place.suffix == ".zip" else tarred(place)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError) as error:
            raise CourseError(f"{place} cannot be read ({error}): hand it in again") from None
    else:
        raise CourseError(f"{place} is no submission: give a folder, a .py file, or one of "
                          f"{', '.join(ARCHIVES)}")


def zipped(place: Path) -> Iterator[tuple[str, bytes | None]]:
    """The Python files of a zip archive."""
    with zipfile.ZipFile(place) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith(".py"):
                good = entry.file_size <= MAX_FILE and not stat.S_ISLNK(entry.external_attr >> 16)
                yield entry.filename, archive.read(entry) if good else None


def tarred(place: Path) -> Iterator[tuple[str, bytes | None]]:
    """The Python files of a tar archive."""
    with tarfile.open(place) as archive:
        for entry in archive:
            if entry.name.endswith(".py"):
                file = archive.extractfile(entry) if entry.isfile() and entry.size <= MAX_FILE \
                    else None
                yield entry.name, file.read() if file else None
