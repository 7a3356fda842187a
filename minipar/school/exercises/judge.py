"""The judge: run an exercise's tests on variants of the source, in a process with a time limit.

    judge ──stdin: the job───────▶ runner      leads its own process group; when the runner ends,
          ◀─file: results──────────┘           the judge kills the group, so no child stays behind

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from ... import environment
from .entries import Exercise
from .source import Patches

LIMIT = 30.0        # seconds for one variant: a correct one needs less than 5
START = 30.0        # seconds for the process to start, on a busy machine
TIMED_OUT = "Timeout ("     # the first word that faulthandler writes


@dataclass(frozen=True)
class TestFailure:
    """A test that failed; `line` is (number, text) of the learner's line that raised, if any."""

    test: str
    error: str
    message: str
    notes: tuple[str, ...] = ()
    line: tuple[int, str] | None = None
    printed: str = ""


@dataclass(frozen=True)
class VariantOutcome:
    """The result of the tests on one variant."""

    num_passed: int
    failures: tuple[TestFailure, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if at least one test ran and all of them passed."""
        return self.num_passed > 0 and not self.failures


class Ended(NamedTuple):
    """A process that has ended; its status is None if it took too long."""

    lines: list[dict]           # of stdout: those that carry its token
    stdout: str
    output: str                 # what it printed besides
    status: int | None


def judge(root: Path, exercise: Exercise, variants: dict[str, Patches],
          lines: tuple[int, int] = (1, 0), limit: float = LIMIT,
          stop_at_first: bool = False) -> dict[str, VariantOutcome]:
    """The outcome of each variant, by name.

    `lines` are the first and last line of the learner's function: a failure names the line among
    them that raised.  A variant that takes longer than `limit` seconds, or ends its process, has
    failed; the variants after it are missing from the result.
    """
    job = {"root": str(root), "file": exercise.file, "lines": lines, "tests": exercise.tests,
           "limit": limit, "stop_at_first": stop_at_first, "variants": variants}
    ended = run_module("minipar.school.exercises.runner", root, job, START + limit * len(variants))
    outcomes = {line["variant"]: outcome_of(line, ended.output) for line in ended.lines}
    unfinished = [name for name in variants if name not in outcomes]
    if unfinished:
        status = ended.status
        if status is None or any(line.startswith(TIMED_OUT) for line in ended.stdout.splitlines()):
            failure = _endless(ended.stdout, root / exercise.file, limit)
        else:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            failure = TestFailure("", "Ended", f"the process that ran the tests ended ({how}): "
                                  + tail(ended.output))
        outcomes[unfinished[0]] = VariantOutcome(0, (failure,), limit)
    return outcomes


def outcome_of(result: dict, output: str = "") -> VariantOutcome:
    """The outcome that the runner reports; `output` is what its tests printed."""
    failures = tuple(TestFailure(**{**f, "notes": tuple(f["notes"]),
                                    "line": f["line"] and tuple(f["line"])})
                     for f in result["failures"])
    if not failures and result["status"]:
        failures = (TestFailure("", "pytest", f"exit status {result['status']}: {tail(output)}"),)
    return VariantOutcome(result["num_passed"], failures, result["seconds"])


def run_module(module: str, root: Path, job: dict, limit: float) -> Ended:
    """Run a module with `job` and a token as JSON on its stdin, in the work tree `root`."""
    variables = environment.mpirun_environment()        # so that pytest is not taken for a rank
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        variables.pop(name, None)
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                  "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    token = secrets.token_hex()
    results, output, status = run_in_group([sys.executable, "-m", module], root, variables,
                                           json.dumps({**job, "token": token}), limit)
    return Ended(_signed(results, token), results, output, status)


def run_in_group(command: list[str], folder: Path, variables: dict[str, str], stdin: str,
                 limit: float) -> tuple[str, str, int | None]:
    """A command's stdout, stderr, and exit status: None if it took more than `limit` seconds.

    When the command ends, every process that it started is killed.  Output goes to files, since
    such processes could keep a pipe open, and its reader would wait for them.
    """
    with _text_file() as results, _text_file() as output:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.PIPE,
                                   stdout=results, stderr=output, start_new_session=True)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(stdin.encode(), timeout=limit)
        finally:
            status = process.poll()
            with suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.wait()
        results.seek(0)
        output.seek(0)
        return results.read(), output.read(), status


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _signed(results: str, token: str) -> list[dict]:
    """The result lines that carry the token, which only the process that was started knows."""
    found = []
    for line in results.splitlines():
        with suppress(ValueError):
            parsed = json.loads(line)
            if isinstance(parsed, dict) and parsed.get("token") == token:
                found.append(parsed)
    return found


def _endless(stack: str, file: Path, limit: float) -> TestFailure:
    """The failure of a variant that exceeded its limit, with the line from faulthandler's dump."""
    numbers = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', stack)     # innermost first
    line = (int(numbers[0]), file.read_text().split("\n")[int(numbers[0]) - 1].strip()) \
        if numbers else None
    return TestFailure("", "EndlessLoop", f"no end after {limit:g} s: is there a loop whose "
                       "condition stays true?", line=line)


def tail(output: str) -> str:
    """The last line of what was printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
