"""A learner: someone with a copy of the source tree, who calls the tool and edits files."""

import os
import re
import shutil
import textwrap
import tomllib
from functools import cache
from pathlib import Path

import pytest

from minipar.commands.course import exercise as command
from minipar.commands.course.exercise import main
from minipar.school import toml_files
from minipar.school.exercises import entries, source

PARSE = cache(tomllib.loads)        # the same catalog in nearly every call of the tool


class Learner:
    """learner("check", "unbroadcast") calls the tool: (exit status, what it said)."""

    def __init__(self, tree: Path, capsys):
        self.tree, self.capsys = tree, capsys

    def __call__(self, *argv):
        status = main(list(argv), root=self.tree)
        said = self.capsys.readouterr()
        return status, said.out + said.err

    def write(self, name, body):
        """Replace the body of an exercise's function in its file, as an editor would."""
        exercise = entries.load(self.tree)[name]
        path = self.tree / exercise.file
        text = path.read_text()
        lines, rows = text.split("\n"), source.locate(text, exercise.function)
        indent = re.match(" *", lines[rows.end - 1])[0]
        body = textwrap.indent(textwrap.dedent(body).strip("\n"), indent)
        path.write_text("\n".join([*lines[:rows.body], body, *lines[rows.end:]]))

    def snapshot(self):
        """Every file with its bytes, but for Python's own caches."""
        return {path: path.read_bytes() for path in self.tree.rglob("*")
                if path.is_file() and path.suffix != ".pyc"}


def copy(file, place):
    """Link what Python has compiled, which it replaces and never changes; copy the rest."""
    try:
        os.link(file, place) if file.endswith(".pyc") else shutil.copy2(file, place)
    except OSError:                     # another file system; or another process replaces the file
        if not file.endswith(".pyc"):
            raise


@pytest.fixture
def learner(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(toml_files.tomllib, "loads", PARSE)
    ignored = shutil.ignore_patterns("files", "bench", "*.pyc.*")
    for part in ("minipar", "tests/school/exercises"):
        shutil.copytree(command.ROOT / part, tmp_path / part, ignore=ignored, copy_function=copy)
    shutil.copy(command.ROOT / "tests/conftest.py", tmp_path / "tests")
    return Learner(tmp_path, capsys)
