"""One MPI job of the launcher: `mpirun -n N python -m pytest ...` on the tests it is given.

    directory/tests      node ids, one a line     (the job reads)
             /results    announcements of rank 0  (the job writes; we read while it runs)
             /rank-R     the rest of the board
             /output     all that the job prints  (shown only if it dies)

A job that dies leaves what it has written, to be told with the failure.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minipar import environment
from minipar.testing.board import Announcements

PATIENCE = 5.0      # seconds that a job has to end by itself, and then to obey a signal
_MACHINERY = tuple(part.replace("/", os.sep) for part in (
    "/_pytest/", "/pytest/__main__.py", "/pluggy/", "/minipar/testing/", "/threading.py",
    "<frozen "))


class Job:
    """A job that runs now. Its ranks work ahead; next() tells what they have announced."""

    def __init__(self, config: pytest.Config, mpirun: str, size: int, tests: Sequence[str],
                 gives_way: bool = False):
        self.name = f"mpirun -n {size}"
        self.directory = Path(tempfile.mkdtemp(prefix="minipar-job-"))
        results = self.directory / "results"
        results.touch()
        (self.directory / "tests").write_text("".join(f"{test}\n" for test in tests))
        with open(self.directory / "output", "wb") as output:
            # Ranks that wait for others poll: what else runs meanwhile is to have its core.
            lower = ["nice", "-n", "5"] if gives_way and shutil.which("nice") else []
            self._process = subprocess.Popen(
                [*lower, mpirun, "-n", str(size), sys.executable, "-m", "pytest",
                 *_options(config), f"--mpi-results={results}", f"@{self.directory / 'tests'}"],
                cwd=config.rootpath, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True)             # Ctrl-C is for us to handle, then we end it
        self._announcements = Announcements(results)

    def next(self) -> dict[str, Any] | None:
        """What rank 0 has announced next; None if there is nothing new."""
        return self._announcements.next()

    def has_ended(self) -> bool:
        """Whether the job has ended, well or badly."""
        return self._process.poll() is not None

    def exit_status(self) -> str:
        """How it ended, in words."""
        status = self._process.returncode
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def last_words(self, lines: int = 40) -> str:
        """The end of its output, without what pytest and we do in it."""
        text = (self.directory / "output").read_text(errors="replace")
        text = re.sub("^=+ MPI Information =+$.*?^mpi4py config:.*?$", "", text, flags=re.M | re.S)
        kept = [line for line in text.splitlines() if not any(m in line for m in _MACHINERY)]
        return "\n".join(kept[-lines:]).strip() or (
            "(nothing: did a rank leave by os._exit, or was it killed?)")

    def close(self, patience: float = PATIENCE) -> None:
        """Wait so long for it to end by itself, then end it by force; leave nothing behind."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:                                    # also after a second Ctrl-C
            self.kill()
            self._announcements.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the job with all its processes, if it has not ended, and wait until it has."""
        if not self.has_ended():
            try:
                self._signal(signal.SIGTERM)        # mpirun passes it on to the ranks
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self._signal(signal.SIGKILL)
                self._process.wait()

    def _signal(self, number: int) -> None:
        if not self.has_ended():
            os.killpg(self._process.pid, number)    # it leads its own session and group


def _environment() -> dict[str, str]:
    """The environment of the ranks: one BLAS thread each, and nothing meant for this pytest."""
    inherited = environment.mpirun_environment()
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        inherited.pop(name, None)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return threads | inherited


def _options(config: pytest.Config) -> list[str]:
    """The options of the ranks' pytest: ours, and those of the parent that shape a report.

    Options that choose tests (-k, -m, -x, ini's addopts) have done their work in the parent.
    """
    given = config.option
    options = ["-q", "--no-header", "--color=no", f"--rootdir={config.rootpath}",
               f"--tb={given.tbstyle}", f"--import-mode={given.importmode}"]
    if config.inipath:
        options += ["-c", str(config.inipath)]
    if given.showlocals:
        options.append("--showlocals")
    for plugin in ("no:cacheprovider", *(given.plugins or ())):
        options += ["-p", plugin]
    for warning in given.pythonwarnings or ():
        options += ["-W", warning]
    for setting in (*(given.override_ini or ()), "addopts="):
        options += ["-o", setting]
    if config.pluginmanager.hasplugin("pytest_mpi"):
        options.append("--only-mpi")
    return options
