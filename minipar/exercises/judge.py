"""The judge: run an exercise's tests on variants of the source, in a process with a time limit."""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import environment
from .manifest import Exercise

LIMIT = 30.0        # seconds that one variant may take: a right one needs less than 5
START = 30.0        # seconds for the process to start, on a machine with other things to do

Grafts = dict[str, list[tuple[str, str]]]       # by file: (function, block)


@dataclass(frozen=True)
class Failure:
    """A test that failed.  `line` is (number, text) of the learner's line that raised, if any."""

    test: str
    error: str
    message: str
    notes: tuple[str, ...] = ()
    line: tuple[int, str] | None = None
    printed: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the tests say of one variant."""

    num_passed: int
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether there were tests and all of them passed."""
        return self.num_passed > 0 and not self.failures


def judge(root: Path, exercise: Exercise, variants: dict[str, Grafts],
          lines: tuple[int, int] = (1, 0), limit: float = LIMIT,
          stop_at_first: bool = False) -> dict[str, Outcome]:
    """The outcome of each variant, by name.

    `lines`, first and last, are those of which a failure tells which one raised.  A variant that
    takes longer than `limit` seconds, or ends its process, has failed; those after it are missing.
    """
    with tempfile.TemporaryDirectory(prefix="minipar-exercise-") as place:
        directory = Path(place)
        (directory / "job.json").write_text(json.dumps({
            "root": str(root), "file": exercise.file, "lines": lines, "tests": exercise.tests,
            "limit": limit, "stop_at_first": stop_at_first, "variants": variants}))
        output, status = _run(root, directory, START + limit * len(variants))
        results, stack = [path.read_text() if path.exists() else ""
                          for path in (directory / "results", directory / "stack")]
    outcomes = {}
    for line in map(json.loads, results.splitlines()):
        failures = tuple(Failure(**{**f, "notes": tuple(f["notes"]),
                                    "line": f["line"] and tuple(f["line"])})
                         for f in line["failures"])
        if not failures and line["status"]:
            failures = (Failure("", "pytest", f"exit status {line['status']}: {_tail(output)}"),)
        outcomes[line["variant"]] = Outcome(line["num_passed"], failures, line["seconds"])
    unfinished = [name for name in variants if name not in outcomes]
    if unfinished:
        if status is None or stack:
            failure = _endless(stack, root / exercise.file, limit)
        else:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            failure = Failure("", "Ended", f"the process that ran the tests ended ({how}): "
                              + _tail(output))
        outcomes[unfinished[0]] = Outcome(0, (failure,), limit)
    return outcomes


def _run(root: Path, directory: Path, limit: float) -> tuple[str, int | None]:
    """Run the runner; return what it printed and its exit status, None if it had to be killed."""
    variables = environment.mpirun_environment()        # pytest must not think it is an MPI rank
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        variables.pop(name, None)
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                  "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with open(directory / "output", "w+", errors="replace") as output:
        try:
            status = subprocess.run(
                [sys.executable, "-m", "minipar.exercises.runner", str(directory)], cwd=root,
                env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return output.read(), status


def _endless(stack: str, file: Path, limit: float) -> Failure:
    """A variant that was ended, and at which line."""
    numbers = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', stack)     # innermost first
    line = (int(numbers[0]), file.read_text().split("\n")[int(numbers[0]) - 1].strip()) \
        if numbers else None
    return Failure("", "EndlessLoop", f"no end after {limit:g} s: is there a loop whose condition "
                   "stays true?", line=line)


def _tail(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
