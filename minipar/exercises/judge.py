"""The judge: run an exercise's tests on variants of the source, in a process with a time limit.

    judge ──stdin: the job───────▶ runner      leads its own process group; when the runner ends,
          ◀─pipe: results──────────┘           the judge kills the group, so no child stays behind

The job carries a secret token, and only result lines with the token count.  A learner's function
therefore cannot forge a result by printing it.  The function does share a process with pytest and
could search for the token there: this tool checks your own work.  To grade others, run the function
and its tests in separate processes.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .. import environment
from .entries import Exercise

LIMIT = 30.0        # seconds for one variant: a correct one needs less than 5
START = 30.0        # seconds for the process to start, on a busy machine
TIMED_OUT = "Timeout ("     # the first word that faulthandler writes

Patches = dict[str, list[tuple[str, str]]]       # by file: (function, block)


@dataclass(frozen=True)
class Failure:
    """A test that failed; `line` is (number, text) of the learner's line that raised, if any."""

    test: str
    error: str
    message: str
    notes: tuple[str, ...] = ()
    line: tuple[int, str] | None = None
    printed: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of the tests on one variant."""

    num_passed: int
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if at least one test ran and all of them passed."""
        return self.num_passed > 0 and not self.failures


def judge(root: Path, exercise: Exercise, variants: dict[str, Patches],
          lines: tuple[int, int] = (1, 0), limit: float = LIMIT,
          stop_at_first: bool = False) -> dict[str, Outcome]:
    """The outcome of each variant, by name.

    `lines` is the first and last line of the learner's function: a failure names the line among
    them that raised.  A variant that takes longer than `limit` seconds, or ends its process, has
    failed; the variants after it are missing from the result.
    """
    job = {"root": str(root), "file": exercise.file, "lines": lines, "tests": exercise.tests,
           "limit": limit, "stop_at_first": stop_at_first, "variants": variants,
           "token": secrets.token_hex()}
    results, output, status = run_module("minipar.exercises.runner", root, job,
                                         START + limit * len(variants))
    outcomes = {line["variant"]: outcome_of(line, output)
                for line in _signed(results, job["token"])}
    unfinished = [name for name in variants if name not in outcomes]
    if unfinished:
        if status is None or any(line.startswith(TIMED_OUT) for line in results.splitlines()):
            failure = _endless(results, root / exercise.file, limit)
        else:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            failure = Failure("", "Ended", f"the process that ran the tests ended ({how}): "
                              + _tail(output))
        outcomes[unfinished[0]] = Outcome(0, (failure,), limit)
    return outcomes


def outcome_of(result: dict, output: str = "") -> Outcome:
    """The outcome that the runner reports; `output` is what its tests printed."""
    failures = tuple(Failure(**{**f, "notes": tuple(f["notes"]),
                                "line": f["line"] and tuple(f["line"])})
                     for f in result["failures"])
    if not failures and result["status"]:
        failures = (Failure("", "pytest", f"exit status {result['status']}: {_tail(output)}"),)
    return Outcome(result["num_passed"], failures, result["seconds"])


def _signed(results: str, token: str) -> list[dict]:
    """The result lines that carry the token: only the runner wrote those."""
    found = []
    for line in results.splitlines():
        with suppress(ValueError):
            parsed = json.loads(line)
            if isinstance(parsed, dict) and parsed.get("token") == token:
                found.append(parsed)
    return found


def run_module(module: str, root: Path, job: dict, limit: float) -> tuple[str, str, int | None]:
    """Run a module with `job` as JSON on its stdin, in the work tree `root`.

    Returns what it wrote on stdout, on stderr, and its exit status (None if it was too slow).
    """
    variables = environment.mpirun_environment()        # so that pytest is not taken for a rank
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        variables.pop(name, None)
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                  "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        results, status = run_in_group([sys.executable, "-m", module], root, variables,
                                       json.dumps(job), output, limit)
        output.seek(0)
        return results, output.read(), status


def run_in_group(command: list[str], folder: Path, variables: dict[str, str], stdin: str,
                 errors: IO, limit: float) -> tuple[str, int | None]:
    """The stdout of a command, and its exit status: None if it took more than `limit` seconds.

    When the command ends, every process that it started is killed.
    """
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors, start_new_session=True)
    deadline, written, pending = time.monotonic() + limit, None, stdin.encode()
    try:
        while written is None and process.poll() is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):       # its children may hold the pipe open
                sending, pending = pending, None            # communicate takes its input once
                written, _ = process.communicate(sending, timeout=0.05)
        status = process.poll()
    finally:
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    if written is None:
        try:
            written, _ = process.communicate(timeout=1)
        except subprocess.TimeoutExpired as expired:        # a child has left the group
            written = expired.output or b""
    return written.decode(errors="replace"), status


def _endless(stack: str, file: Path, limit: float) -> Failure:
    """The failure of a variant that exceeded its limit, with the line from faulthandler's dump."""
    numbers = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', stack)     # innermost first
    line = (int(numbers[0]), file.read_text().split("\n")[int(numbers[0]) - 1].strip()) \
        if numbers else None
    return Failure("", "EndlessLoop", f"no end after {limit:g} s: is there a loop whose condition "
                   "stays true?", line=line)


def _tail(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
