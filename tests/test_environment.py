"""Commands that minipar prints start as they stand, with or without an active environment."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minipar.environment import minipar_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").rglob("*.md"))]
ACTIVATION = ". .venv/bin/activate"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with an environment in it, whose Python is the one that runs; PATH is empty."""
    for name in ("python", "mpirun"):
        program = tmp_path / "my clone" / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path / "my clone")
    return tmp_path / "my clone"


def test_a_command_names_the_environment_that_is_not_active(clone):
    assert minipar_command("doctor") == ".venv/bin/python -m minipar doctor"
    assert minipar_command("calibrate", 4) == (
        ".venv/bin/mpirun -n 4 .venv/bin/python -m minipar calibrate")


def test_a_command_in_an_active_environment_is_short(clone, monkeypatch):
    monkeypatch.setenv("PATH", str(clone / ".venv" / "bin"))
    assert minipar_command("calibrate", 4) == "mpirun -n 4 python -m minipar calibrate"


def test_another_environment_is_active(clone, monkeypatch, tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert minipar_command("doctor") == ".venv/bin/python -m minipar doctor"


@pytest.mark.parametrize("folder", ["..", ".venv/bin"])
def test_a_command_from_another_folder_has_the_whole_path(clone, monkeypatch, folder):
    monkeypatch.chdir(folder)
    assert minipar_command("doctor").endswith("my clone/.venv/bin/python' -m minipar doctor")


@pytest.mark.parametrize("path", ["", str(Path(sys.executable).parent)])
@pytest.mark.parametrize("folder", [ROOT, ROOT / "lessons"], ids=lambda folder: folder.name)
def test_a_printed_command_runs_as_it_stands(folder, path):
    environment = {**os.environ, "PATH": os.pathsep.join(filter(None, [path, "/usr/bin", "/bin"]))}
    command = subprocess.run(
        [sys.executable, "-c", "from minipar.environment import minipar_command as command\n"
         "print(command('exercise list'))"], cwd=folder, env=environment, capture_output=True,
        encoding="utf-8", timeout=60).stdout
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True,
                          encoding="utf-8", timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    assert "To begin: " + command.strip().replace("list", "start NAME") in done.stdout


def test_no_message_spells_the_command_itself():
    """Docstrings may: they are for a reader whose environment is active."""
    wrong = []
    for file in [*(ROOT / "minipar").rglob("*.py"), *(ROOT / "lessons").glob("*.py")]:
        text = file.read_text(encoding="utf-8")
        if "mpirun" not in text and "python -m" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        docstrings = {id(node.body[0].value) for node in nodes
                      if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
                      and ast.get_docstring(node, clean=False) is not None}
        wrong += [(str(file.relative_to(ROOT)), node.value) for node in nodes
                  if isinstance(node, ast.Constant) and id(node) not in docstrings
                  and re.search(r"python -m minipar \w|mpirun -n \d+ python", str(node.value))]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_with_commands_activates_the_environment_first(page):
    text = page.read_text(encoding="utf-8")
    bare = re.search(r"^(mpirun|python|minipar) ", text, re.MULTILINE)
    if bare:
        assert ACTIVATION in text[:bare.start()], f"{bare[0]}… before `{ACTIVATION}`"
