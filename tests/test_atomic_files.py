"""Files are written whole or not at all: by several processes, killed ones, and on a full disk."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from minipar import checkpoint_file as files
from minipar.atomic_files import SUFFIX, locked, replace_file

# Saves checkpoints whose description and only array say who wrote them.
SAVER = """
import sys
from pathlib import Path
import numpy as np
from minipar.checkpoint_file import Checkpoint, save
for step in range(120):
    name = f"{sys.argv[2]} {step}"
    arrays = {"name": np.frombuffer(name.encode().ljust(2000), np.uint8)}
    save(Path(sys.argv[1]), Checkpoint(arrays, {}, {"name": name}))
"""
# Says that it is in the midst of writing a file, and waits there.
WRITER = """
import sys, time
from minipar.atomic_files import replace_file
def write(file):
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(60)
replace_file(sys.argv[1], write)
"""


def start(program: str, *words) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drafts(folder) -> list:
    return [path for path in folder.iterdir() if path.name.endswith(SUFFIX)]


def test_two_processes_save_into_one_folder(tmp_path):
    savers = [start(SAVER, tmp_path, name) for name in "ab"]
    for saver in savers:
        assert saver.communicate(timeout=60)[1] == "" and saver.returncode == 0
    for name in (files.NEWEST, files.PREVIOUS):
        saved = files.load(tmp_path / name)
        assert saved.model["name"].tobytes().decode().strip() == saved.description["name"]
    newest = files.load(tmp_path).description["name"]
    assert newest[2:] == "119" and newest != saved.description["name"]
    assert json.loads((tmp_path / "checkpoint.json").read_text())["name"] == newest
    assert len(list(tmp_path.iterdir())) == 3               # no drafts, no links


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    writers = [start(WRITER, place) for place in (path, path, other)]
    for writer in writers:
        assert writer.stdout.readline() == "writing\n"
    for writer in (writers[0], writers[2]):
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert len(drafts(tmp_path)) == 3
    replace_file(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    left = drafts(tmp_path)
    assert sorted(draft.name.split(".")[1] for draft in left) == ["a", "b"]    # living; not asked
    for writer in writers:
        writer.kill()
        writer.communicate()
    replace_file(path, lambda file: file.write(b"again"))
    replace_file(other, lambda file: file.write(b"again"))
    assert not drafts(tmp_path)


def test_a_failure_names_the_file_and_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    replace_file(path, lambda file: file.write(b"old"))

    def full(file):
        file.write(b"new")
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise ValueError("cannot close, as zipfile says")
    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, full)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old" and not drafts(tmp_path)
    with pytest.raises(ZeroDivisionError):                  # what is no problem of the file
        replace_file(path, lambda file: 1 / 0)


def test_a_folder_that_another_process_keeps_locked_is_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("minipar.atomic_files.PATIENCE", 0.01)
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert first and not second
        replace_file(tmp_path / "a.txt", lambda file: file.write(b"whole"))
    assert (tmp_path / "a.txt").read_bytes() == b"whole" and not drafts(tmp_path)


def test_without_locks_no_time_is_spent_on_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("minipar.atomic_files.fcntl", None)
    monkeypatch.setattr("minipar.atomic_files.time.sleep", lambda seconds: pytest.fail("it waits"))
    replace_file(tmp_path / "a.txt", lambda file: file.write(b"whole"))
    assert (tmp_path / "a.txt").read_bytes() == b"whole" and not drafts(tmp_path)


def test_files_are_as_readable_as_others(tmp_path):
    path = replace_file(tmp_path / "a.txt", lambda file: file.write(b"1"))
    (tmp_path / "plain.txt").write_text("1")
    assert path.stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
    assert replace_file("/dev/null", lambda file: file.write(b"1")).is_char_device()
