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


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the source tree, and how its files were."""
    root = tmp_path_factory.mktemp("learner")
    ignored = shutil.ignore_patterns("files", "bench", "*.pyc.*")
    for part in ("minipar", "tests/school/exercises"):
        shutil.copytree(command.ROOT / part, root / part, ignore=ignored, copy_function=copy)
    shutil.copy2(command.ROOT / "tests/conftest.py", root / "tests")
    return root, files(root)


def files(root):
    """The time and the size of every file, but for Python's own caches."""
    return {Path(folder, name): ((stat := os.stat(Path(folder, name))).st_mtime_ns, stat.st_size)
            for folder, _, names in os.walk(root) if not folder.endswith("__pycache__")
            for name in names}


def bring_back(root, before):
    """Undo all that a test has done to a tree."""
    after = files(root)
    for path in {*before, *after}:
        if before.get(path) == after.get(path):
            continue
        path.unlink(missing_ok=True)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        if path in before:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(command.ROOT / path.relative_to(root), path)
    for path in root.iterdir():
        if path.name not in ("minipar", "tests"):
            shutil.rmtree(path)


@pytest.fixture
def learner(tree, capsys, monkeypatch):
    monkeypatch.setattr(toml_files.tomllib, "loads", PARSE)
    yield Learner(tree[0], capsys)
    bring_back(*tree)
