"""A disk without room: one line that names the file, and what was there before is as it was."""

import resource
import sys
from contextlib import contextmanager

import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main

SMALL = ("--data", "digits", "--hidden", "32", "--batch", "8")


@contextmanager
def largest_file(num_bytes: int):
    """Context in which the system lets no file grow beyond a number of bytes.

    Python would keep a module that is imported first here as bytecode that is cut off.
    """
    limits, writes = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert run("train", *SMALL, "--steps", 2, "--out", folder) == 0
    return folder


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("command, name", [
    ("train --resume {trained} --steps 5 --save-every 1", "checkpoint.npz"),
    ("train --resume {trained} --steps 5 --save-every 1 --ranks 2", "checkpoint.npz"),
    ("prune {trained}", "checkpoint.npz"), ("quantize {trained} --bits 8", "checkpoint.npz"),
    ("distill {trained} --steps 1", "checkpoint.npz")])
@pytest.mark.one_in(2)
def test_a_checkpoint_that_does_not_fit(trained, tmp_path, capsys, command, name):
    for step in (1, 2):                 # a newest one, and one before
        files.save(tmp_path, files.Checkpoint({}, {}, {"step": step}))
    before = content(tmp_path)
    capsys.readouterr()
    with largest_file(3000):
        status = run(*command.format(trained=trained).split(), "--out", tmp_path)
    said = capsys.readouterr().err
    assert status == 1 and said.count("\n") == 1
    assert f"{tmp_path / name}: File too large: make room" in said
    assert content(tmp_path) == before


@pytest.mark.parametrize("command, name", [
    ("train {words} --steps 1 --out {folder}", "loss.png"),
    ("train {words} --steps 1 --ranks 2 --out {folder}", "loss.png"),
    ("collective all_reduce -p 4 --png {folder}/a.png", "a.png"),
    ("collective all_reduce -p 4 --html {folder}/a.html", "a.html"),
    ("schedule 1f1b --perfetto {folder}/a.json", "a.json"),
    ("schedule 1f1b --png {folder}/a.svg", "a.svg")])
@pytest.mark.one_in(2)
def test_a_picture_that_does_not_fit(tmp_path, capsys, command, name):
    (tmp_path / name).write_text("before")
    small = "--data digits --hidden= --batch 8 --optimizer sgd"
    with largest_file(11_000):          # more than that checkpoint
        status = run(*command.format(words=small, folder=tmp_path).split())
    said = capsys.readouterr().err
    assert status == 1 and said.count("\n") == 1 and f"{tmp_path / name}: File too large" in said
    assert (tmp_path / name).read_text() == "before"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    if command.startswith("train"):
        assert files.load(tmp_path).description["step"] == 1
