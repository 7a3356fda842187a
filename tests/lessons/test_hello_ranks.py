"""docs/pages/mpi.md shows lessons/hello_ranks.py, what it prints, and how a mistake hangs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from minipar.environment import find_mpirun, mpirun_environment

ROOT = Path(__file__).parents[2]
FILE = ROOT / "lessons" / "hello_ranks.py"
PAGE = (ROOT / "docs" / "pages" / "mpi.md").read_text("utf-8")
PRINTED, HANGS = re.findall(r"\n\n```\n(.*?)```", PAGE, re.DOTALL)


def run(file: Path, before=(), after=()) -> subprocess.CompletedProcess:
    # Without a buffer print() writes a line and its end apart, and lines of ranks would mix.
    environment = mpirun_environment() | {"PYTHONUNBUFFERED": ""}
    return subprocess.run([*before, sys.executable, file, *after], capture_output=True, timeout=60,
                          encoding="utf-8", env=environment)


def test_the_page_shows_the_program():
    shown = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert shown in FILE.read_text("utf-8") and len(shown.splitlines()) <= 10


@pytest.mark.parametrize("words", [["--ranks", "4"], ["mpirun"]])
def test_it_prints_what_the_page_shows(words):
    if words == ["mpirun"] and find_mpirun() is None:
        pytest.skip("there is no mpirun: pip install '.[mpi]'")
    done = run(FILE, [find_mpirun(), "-n", "4"]) if words == ["mpirun"] else run(FILE, (), words)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == PRINTED.splitlines()


def test_the_mistake_hangs_as_the_page_says(tmp_path):
    lines = [line for line in FILE.read_text("utf-8").splitlines() if "irecv" not in line]
    wrong = tmp_path / "hello_ranks.py"
    wrong.write_text("\n".join(lines).replace(
        "request.wait()", "comm.recv(theirs, left, tag=7)"), "utf-8")
    done = run(wrong, (), ["--ranks", "4"])
    assert done.returncode != 0
    assert done.stderr.replace(str(wrong), "lessons/hello_ranks.py") == HANGS
