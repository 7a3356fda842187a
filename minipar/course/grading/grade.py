"""Grade a submission: run each case of each task, compare, and count the points.

    submission ─▶ read_submission ─▶ files, as text
    task, case, seed ─▶ arguments ─▶ Worker.run ─▶ results, messages
                     └▶ expected, traffic ───────▶ judge ─▶ points

The seed of a case comes from the course's key and the digest of the submission: answers cannot be
prepared, and the same submission is always graded alike.
"""

import time
from collections.abc import Iterator, Sequence

from ..checker.compare import judge
from ..checker.outcome import Outcome
from ..checker.runner import Job, Worker
from ..checker.service import Failure
from .submission import Submission
from .tasks import Case, CourseError, Task, seed_of

PROBE = Job({"probe": "def probe(comm, x):\n    return x"}, "probe", "probe", [{"x": 1}] * 2)


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
          supplied: dict[str, str], deadline: float = float("inf")) -> Iterator[Outcome]:
    """Grade the tasks' cases one by one.

    `supplied` are files that come with the assignment, by module name; a submission cannot replace
    them.  Cases that would start after `deadline` (of time.monotonic) earn nothing.
    """
    files = {**submission.files, **supplied}
    for task in tasks:
        for case in task.cases:
            seed = seed_of(key, submission.digest, task.name, case.number)
            if task.name not in submission.files:
                yield outcome(task, case, seed, Failure(None, "Missing", f"there is no {task.name}"
                                                        ".py in the submission"))
            elif time.monotonic() > deadline:
                yield outcome(task, case, seed, Failure(None, "NoTimeLeft", "the time for the "
                              "whole submission was over before this case"))
            else:
                yield run_case(task, case, seed, files, worker)


def run_case(task: Task, case: Case, seed: int, files: dict[str, str], worker: Worker) -> Outcome:
    """Run and judge one case."""
    arguments = task.arguments(case, seed)
    expected, allowed = task.expected(arguments, case), task.traffic(arguments, case)
    started = time.monotonic()
    run = worker.run(Job(files, task.name, task.function, arguments, task.is_serial))
    seconds = time.monotonic() - started
    failure, measured = judge(run, expected, allowed, task.tolerance, task.measure(case))
    printed = next((text for text in run.printed if text.strip()), "")
    return outcome(task, case, seed, failure, seconds, printed, measured)


def outcome(task: Task, case: Case, seed: int, failure: Failure | None, seconds: float = 0.0,
            printed: str = "", measured: dict[str, float] | None = None) -> Outcome:
    """The outcome of a case."""
    return Outcome(task.name, case.number, str(case), case.ranks, case.points, case.is_hidden,
                   f"seed {seed}", seconds, failure, printed, measured or {})
