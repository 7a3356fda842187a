"""Small test files in a folder of their own, run by a pytest of their own."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minipar import environment

# Without colours: Open MPI's ranks print to what looks like a terminal.
# Without plugins that these tests need not: each of their processes would load them.
PYTEST = (sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider",
          "-p", "no:hypothesispytest", "-p", "no:anyio")

needs_mpi = pytest.mark.skipif(environment.find_mpirun() is None,
                               reason="there is no mpirun: pip install '.[mpi]'")

CONFTEST = 'pytest_plugins = ["minipar.testing.plugin"]\n'

HEADER = """
import ctypes, os, signal, time
from pathlib import Path
import pytest
here = Path(__file__).parent
two, three = pytest.mark.mpi(min_size=2), pytest.mark.mpi(min_size=3)

def world():
    from mpi4py import MPI
    return MPI.COMM_WORLD

def note(name, text=""):
    with open(here / name, "a") as file:
        file.write(f"{text}\\n")
"""


def heed_ctrl_c() -> None:
    """Make a new process heed Ctrl-C, which it ignores if the tests run in a shell's background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Sandbox:
    """A folder with a conftest and a test file, and its own place for temporary files."""

    def __init__(self, folder: Path, tests: str, conftest: str = ""):
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        (folder / "conftest.py").write_text(CONFTEST + conftest)
        (folder / "test_it.py").write_text(HEADER + tests)
        # Also where this test itself runs on a rank, the new pytest must not take itself for one.
        self.environment = environment.mpirun_environment() | {
            "TMPDIR": str(self.temporary), "MINIPAR_TEST_TIMEOUT": "3",
            "MINIPAR_TEST_GRACE": "0.5", "COLUMNS": "150"}
        for name in ("PYTEST_ADDOPTS", "CI"):
            self.environment.pop(name, None)

    def start(self, *command: str) -> subprocess.Popen:
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True,
                                preexec_fn=heed_ctrl_c)

    def run(self, *options: str, ranks: int = 0) -> tuple[int, str]:
        """Exit status and output of pytest, started plainly or by mpirun."""
        launcher = (environment.find_mpirun(), "-n", str(ranks)) if ranks else ()
        process = self.start(*launcher, *PYTEST, *options)
        try:
            output, _ = process.communicate(timeout=90)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    def lines(self, name: str) -> list[str]:
        """The lines that the tests noted under this name."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def leftovers(self) -> list[str]:
        return [path.name for path in self.temporary.glob("minipar-*")]


def closing_lines(output: str) -> list[str]:
    return re.findall(r"^=+ (.* in [0-9.]+s.*?) =+$", output, re.MULTILINE)


def counts(output: str) -> dict[str, int]:
    """The closing line as a dictionary; there must be just one."""
    line, = closing_lines(output)
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)
            if word != "s"}


def section(output: str, test: str) -> str:
    """The text that pytest printed about one failed test."""
    return re.split(r"^_{3,} .* _{3,}$|^={3,} .* ={3,}$",
                    output.split(f"_ {test} _", 1)[1].split("\n", 1)[1], flags=re.MULTILINE)[0]
