"""Atomic writes: a file is replaced whole or not at all, also if processes compete or are killed.

    .checkpoint.npz.1f0c55a2.part    a draft: written, flushed to disk, locked by its writer
              │ os.replace
              ▼
    checkpoint.npz                   the old file or the new one, always whole

Each writer has its own draft, so several may write one file: the last one wins.  A lock (flock)
ends with its process.  So a draft that can be locked was left by a killed writer, and the next
write of the same file removes it.  The folder is locked only while drafts are created, removed and
renamed.  On a file system without locks, drafts of killed writers stay.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:                 # Windows, WebAssembly
    fcntl = None        # type: ignore[assignment]

Write = Callable[[BinaryIO], Any]
SUFFIX = ".part"
PATIENCE = 10.0     # seconds to wait for the lock of a folder, which others hold for much less


def replace_file(path: str | Path, write: Write) -> Path:
    """Replace the file `path` in one step by what `write(file)` writes; return the path.

    A path that is no regular file, such as /dev/stdout, is written directly.  Raises OSError, which
    names `path`.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with naming(path), path.open("wb") as file:
            write(file)
    else:
        replace_files({path: write})
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in UTF-8, whole or not at all; return its path."""
    return replace_file(path, lambda file: file.write(text.encode()))


def replace_files(writes: Mapping[Path, Write], before: Callable[[], None] = lambda: None) -> None:
    """Replace several files of one folder, each by what its `write(file)` writes.

    They are replaced one after the other, when all are written and `before()` has returned.  From
    the call of `before()` on, no other process replaces files of this folder, provided that the
    folder can be locked.  Raises OSError, which names a path.  If a write fails, no file has
    changed.
    """
    folder = next(iter(writes)).parent
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:
        with locked(folder):
            files = {path: drafts.enter_context(draft_of(path)) for path in writes}
        for path, write in writes.items():
            with naming(path):
                write(files[path])
                files[path].flush()
                os.fsync(files[path].fileno())
        with locked(folder) as is_locked:
            if is_locked:
                for path in writes:
                    remove_leftovers(path)
            before()
            for path, file in files.items():
                with naming(path):
                    file.close()
                    os.replace(file.name, path)


def draft_name(path: Path) -> Path:
    """A name beside `path` that no other writer has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")


@contextmanager
def draft_of(path: Path) -> Iterator[BinaryIO]:
    """Context of a new, locked file beside `path`; at the end it is removed, unless renamed."""
    with naming(path):
        file = draft_name(path).open("xb")
    try:
        try_lock(file.fileno())
        yield file
    finally:
        try:
            with naming(path):
                file.close()        # which fails once more where the disk is full
        finally:
            Path(file.name).unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove the drafts of `path` whose writers are gone; call it with the folder locked."""
    for draft in path.parent.glob(f".*{SUFFIX}"):
        if not draft.name.startswith(f".{path.name}."):
            continue
        try:
            with draft.open("rb") as file:
                if try_lock(file.fileno()):
                    draft.unlink(missing_ok=True)
        except OSError:             # another user's: it stays
            continue


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which an OSError, such as a full disk's, gets the name `path`."""
    try:
        yield
    except Exception as error:
        cause = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__       # zipfile, for one, fails again when it is closed
        if cause is None or cause.errno is None:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Context in which no other process that uses this module changes files of `folder`.

    It yields False, and locks nothing, where folders cannot be locked or another process holds the
    lock for longer than PATIENCE.
    """
    if fcntl is None:                   # no such system call: waiting would not help
        yield False
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        deadline = time.monotonic() + PATIENCE
        while not (is_locked := try_lock(descriptor)) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield is_locked
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, or folder, until it is closed; return whether that was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError):
        return False
    return True
