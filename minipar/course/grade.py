"""Grade a submission: run each case of each task, compare, and count the points.

    submission ─▶ read_submission ─▶ files, as text
    task, case, seed ─▶ arguments ─▶ Worker.run ─▶ results, messages
                     └▶ expected, traffic ───────▶ judge ─▶ points

The seed of a case comes from the course's key and the digest of the submission: answers cannot be
prepared, and the same submission is always graded alike.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .checker.compare import judge
from .checker.runner import Job, Worker
from .checker.service import Failure, Run
from .submission import Submission
from .tasks import Case, CourseError, Task, seed_of

PRINTED = 2000              # characters of what a rank printed, in a report
PROBE = Job({"probe": "def probe(comm, x):\n    return x"}, "probe", "probe", [{"x": 1}] * 2)


class Result(NamedTuple):
    """A case of a task, graded."""

    task: Task
    case: Case
    seed: int
    seconds: float
    failure: Failure | None
    printed: str = ""
    measured: dict[str, float] = {}

    @property
    def points(self) -> int:
        """Points that the case earned."""
        return 0 if self.failure else self.case.points


def check_sandbox(worker: Worker, allow_none: bool) -> None:
    """Raise CourseError unless submissions can be run here without harm, or `allow_none` is set."""
    if not worker.is_fenced and not allow_none:
        raise CourseError("grading others' code needs Linux on x86-64 or ARM, for its sandbox: "
                          "grade there, or in a container; --no-sandbox grades code that you "
                          "trust")
    run = worker.run(PROBE)
    if run.failure is not None:
        raise CourseError(f"no rank can be started here ({run.failure.message}): grade on another "
                          "machine, or in a container that allows seccomp")


def grade(submission: Submission, tasks: Sequence[Task], key: str, worker: Worker,
          supplied: dict[str, str], deadline: float = float("inf"),
          hidden: bool = True) -> Iterator[Result]:
    """Grade the tasks' cases one by one.

    `supplied` are files that come with the assignment, by module name; a submission cannot replace
    them.  Cases that would start after `deadline` (of time.monotonic) fail.  Without `hidden` only
    the public cases are run.
    """
    files = {**submission.files, **supplied}
    for task in tasks:
        for case in task.cases:
            if case.is_hidden and not hidden:
                continue
            seed = seed_of(key, submission.digest, task.name, case.number)
            if task.name not in submission.files:
                failure = Failure(None, "Missing", f"there is no {task.name}.py in the submission")
                yield Result(task, case, seed, 0.0, failure)
            elif time.monotonic() > deadline:
                failure = Failure(None, "NoTimeLeft", "the time for the whole submission was over "
                                  "before this case")
                yield Result(task, case, seed, 0.0, failure)
            else:
                yield run_case(task, case, seed, files, worker)


def run_case(task: Task, case: Case, seed: int, files: dict[str, str], worker: Worker) -> Result:
    """Run and judge one case."""
    arguments = task.arguments(case, seed)
    expected, allowed = task.expected(arguments, case), task.traffic(arguments, case)
    started = time.monotonic()
    run = worker.run(Job(files, task.name, task.function, arguments, task.is_serial))
    seconds = time.monotonic() - started
    failure = judge(run, expected, allowed, task.tolerance)
    printed = next((text for text in run.printed if text.strip()), "")[:PRINTED]
    return Result(task, case, seed, seconds, failure, printed,
                  measure(task, case, run) if failure is None else {})


def measure(task: Task, case: Case, run: Run) -> dict[str, float]:
    """What a capstone is ranked by; {} for other tasks."""
    if "measure" not in task.code:
        return {}
    return task.call("measure", run.results, run.messages, case.ranks, **case.sizes)


def describe(result: Result) -> str:
    """A result for the student, in Markdown."""
    failure = result.failure
    if failure is None:
        return f"passed in {result.seconds:.2f} s"
    who = "" if failure.rank is None or result.task.is_serial else f"rank {failure.rank}: "
    kind = "" if failure.error in ("WrongValue", "Traffic", "Missing") else f"{failure.error}: "
    lines = [f"{who}{kind}{failure.message}"]
    if failure.line:
        lines.append(f"at {failure.line}")
    lines.append(f"with {result.case}, seed {result.seed}")
    if result.printed.strip():
        lines.append(f"printed: {result.printed.strip()}")
    return "\n\n".join(lines)
