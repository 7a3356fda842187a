"""One MPI job that runs tests: `mpirun -n N python -m pytest @directory/tests`.

    directory/tests      node ids, one a line     (the job reads it)
             /events     the events of rank 0     (the job writes; the controller reads meanwhile)
             /rank-R     the rest of the status board
             /output     all that the job prints  (shown only if the job dies)
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
from minipar.testing.status_board import EventReader

PATIENCE = 5.0      # seconds that a job has to end by itself, and again after SIGTERM
_MACHINERY = tuple(part.replace("/", os.sep) for part in (
    "/_pytest/", "/pytest/__main__.py", "/pluggy/", "/minipar/testing/", "/threading.py",
    "<frozen "))


class MpiJob:
    """A running job, from its start on; `next_event()` reads what its rank 0 has written."""

    def __init__(self, config: pytest.Config, mpirun: str, size: int, tests: Sequence[str],
                 low_priority: bool = False):
        self.name = f"mpirun -n {size}"
        self.directory = Path(tempfile.mkdtemp(prefix="minipar-job-"))
        events = self.directory / "events"
        events.touch()
        (self.directory / "tests").write_text("".join(f"{test}\n" for test in tests))
        with open(self.directory / "output", "wb") as output:
            # Ranks that wait for others poll; serial tests should get the core instead.
            lower = ["nice", "-n", "5"] if low_priority and shutil.which("nice") else []
            self._process = subprocess.Popen(
                [*lower, mpirun, "-n", str(size), sys.executable, "-m", "pytest",
                 *_options(config), f"--mpi-events={events}", f"@{self.directory / 'tests'}"],
                cwd=config.rootpath, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True)             # Ctrl-C is for this pytest: it ends the job
        self._events = EventReader(events)

    def next_event(self) -> dict[str, Any] | None:
        """The next event of rank 0; None if there is nothing new."""
        return self._events.next()

    def has_ended(self) -> bool:
        """True once the job has ended, well or badly."""
        return self._process.poll() is not None

    def exit_status(self) -> str:
        """Its exit status or signal, in words."""
        status = self._process.returncode
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def output_tail(self, lines: int = 40) -> str:
        """The end of its output, without the lines of pytest and of this plugin."""
        text = (self.directory / "output").read_text(errors="replace")
        text = re.sub("^=+ MPI Information =+$.*?^mpi4py config:.*?$", "", text, flags=re.M | re.S)
        kept = [line for line in text.splitlines() if not any(m in line for m in _MACHINERY)]
        return "\n".join(kept[-lines:]).strip() or (
            "(nothing: did a rank leave by os._exit, or was it killed?)")

    def close(self, patience: float = PATIENCE) -> None:
        """Wait `patience` seconds for the job to end, then end it; remove its directory."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:                                    # also after a second Ctrl-C
            self.kill()
            self._events.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End all processes of the job, and wait until they have ended."""
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
            os.killpg(self._process.pid, number)    # the job leads its own group


def _environment() -> dict[str, str]:
    """The environment of the ranks: one BLAS thread each unless set, no options of this pytest."""
    inherited = environment.mpirun_environment()
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        inherited.pop(name, None)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return threads | inherited


def _options(config: pytest.Config) -> list[str]:
    """The options of the ranks' pytest: those of this pytest that shape a report or load plugins.

    Options that select tests (-k, -m, -x, ini's addopts) were applied here already.
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
