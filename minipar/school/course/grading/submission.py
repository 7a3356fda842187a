"""A submission: the Python files that a student handed in, as texts.  Nothing of it is run here.

    folder, archive or file ─▶ read_submission ─▶ modules by name, all other files by path
                                    tasks      ─▶ find_tasks ─▶ a module for each task, or why not
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...toml_files import SchoolError
from ..checker.outcome import printable
from ..checker.ranks.frames import clean
from .readers import MAX_FILE, Readers, is_archive, is_litter, is_python, readers
from .tasks import Task

MAX_FILES = 64              # files that are read
MAX_SOURCES = 512 << 10     # bytes of all files together, as JSON: a rank gets them in one frame
MOST_PROBLEMS = 10          # problems that are told
MOST_NAMES = 6              # names of files in a problem


class Submission(NamedTuple):
    """The modules of a submission by name, and its digest: the same for the same files."""

    name: str
    files: dict[str, str]
    digest: str
    problems: tuple[str, ...]       # files that were left out, and why
    others: dict[str, str]          # all other files by path; "" for files that are not Python
    days_late: int = 0

    @property
    def has_python(self) -> bool:
        """True if there are Python files, even if none could be read."""
        return bool(self.files or self.problems or any(self.others.values()))


def read_submission(place: Path, wanted: Collection[str] = ()) -> Submission:
    """Read a folder, an archive, or one Python file.  Raises SchoolError if it is none of these.

    If two modules in different folders have the same name, the one nearest to the top counts; the
    `wanted` modules are read first.  Links are not followed.  A file that is too large, or not
    text, is left out, and so is litter: virtual environments, caches, names that begin with a dot.
    If a folder without Python files has one archive, the archive is read.
    """
    submission = read_place(place, wanted)
    archives = [path for path in submission.others if is_archive(path)]
    if place.is_dir() and len(archives) == 1 and not submission.has_python \
            and not (place / archives[0]).is_symlink():
        try:
            return read_place(place / archives[0], wanted)._replace(name=submission.name)
        except SchoolError as error:
            return submission._replace(problems=(clean(error),))
    return submission


def read_place(place: Path, wanted: Collection[str]) -> Submission:
    """Read a folder, an archive or a file as a submission.  Raises SchoolError."""
    with ExitStack() as stack:
        try:
            files, others, problems = read_files(without_litter(readers(place, stack)), wanted)
        except SchoolError:
            raise
        except Exception as error:      # an archive can be broken in every way
            raise SchoolError(f"{clean(place)} cannot be read ({clean(error)}): hand it in again"
                              ) from None
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"and {len(problems) - MOST_PROBLEMS} more"]
    return Submission(name_of(place), files, digest(files), tuple(map(clean, problems)), others)


def name_of(place: Path) -> str:
    """The name of a submission, in one line."""
    return " ".join(printable(clean(place.name)).split())


def parts(path: str) -> tuple[str, ...]:
    """The folders and the name of a path, which may come from Windows."""
    return PurePosixPath(path.replace("\\", "/")).parts


def without_litter(found: Readers) -> Readers:
    """The files that a person wrote, those nearest to the top first."""
    kept = [path for path in found if parts(path) and not any(map(is_litter, parts(path)))]
    return {path: found[path] for path in sorted(kept, key=lambda path: (len(parts(path)), path))}


def module_name(path: str) -> str:
    """The name by which a file can be imported; "" if there is none."""
    stem, ending, rest = unicodedata.normalize("NFKC", parts(path)[-1]).rpartition(".py")
    return stem if ending and not rest and stem.isidentifier() else ""


def read_files(found: Readers, wanted: Collection[str]
               ) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """(the modules by name, other files by path, what was left out).

    It reads at most MAX_FILES Python files: first those wanted, then other modules, then files
    whose names are no modules'.  The `others` that are not Python are not read.
    """
    files: dict[str, str] = {}
    others = dict.fromkeys(found, "")
    problems, room = [], MAX_SOURCES
    python = sorted(filter(is_python, found), key=lambda path: (
        module_name(path) not in wanted, module_name(path) == ""))
    for number, path in enumerate(python):
        name, read = module_name(path), found[path]
        if number >= MAX_FILES:
            problems.append(f"{path} is beyond the first {MAX_FILES} files")
            continue
        del others[path]
        if read is None:
            problems.append(f"{path} is no plain file, or has more than {MAX_FILE:,} bytes")
            continue
        try:
            text = read().decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:                # as in UTF-16
            problems.append(f"{path} is not text in UTF-8: save it as UTF-8")
            continue
        size = len(json.dumps(text))
        if size > room:
            problems.append(f"{path} is left out: all files may have {MAX_SOURCES:,} bytes")
            continue
        room -= size
        if name and name not in files:
            files[name] = text
        else:
            others[path] = text
    return files, others, problems


def find_tasks(submission: Submission, tasks: Sequence[Task]) -> Submission:
    """The submission with a module for each task, also for one whose file has a different name.

    Systems and people rename files: a copy, other capitals, a dash, one more ending.  So if a task
    has no file, the one file that defines its function is taken.  The problems tell of each such
    file, of tasks without a file, and of files with a different version of a function.
    """
    files, problems, missing = dict(submission.files), [*submission.problems], []
    texts = {**submission.others, **{f"{name}.py": text for name, text in files.items()}}
    for task in tasks:
        file = f"{task.name}.py"
        found = [path for path, text in texts.items() if defines(text, task.function)]
        if task.name in files:
            rest = [path for path in found if texts[path] != texts[file]]
            if rest and file in found:          # else a helper defines it
                problems.append(f"{file} was graded, not the other {task.function} in "
                                f"{listed(rest)}")
        elif len({texts[path] for path in found}) == 1:
            files[task.name] = texts[found[0]]
            problems.append(f"there is no {file}: {found[0]} was graded, which defines "
                            f"{task.function}")
        elif found:
            problems.append(f"there is no {file}, and {task.function} differs between "
                            f"{listed(found)}: hand in one")
        else:
            missing.append(file)
    if missing:
        names = {f"{task.name}.py" for task in tasks}
        rest = sorted(path for path in texts if path not in names)
        problems.append(f"there is no {', '.join(missing)}; other files: {listed(rest) or 'none'}")
    return submission._replace(files=files, digest=digest(files),
                               problems=tuple(map(clean, problems)))


def defines(text: str, function: str) -> bool:
    """True if a module has a function of this name."""
    return re.search(rf"(^|[\r\n])def\s+{function}\s*\(", text) is not None


def listed(paths: Sequence[str]) -> str:
    """The first paths as text, and how many more there are."""
    more = len(paths) - MOST_NAMES
    return ", ".join(paths[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def digest(files: dict[str, str]) -> str:
    """The SHA-256 of modules and their names."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
