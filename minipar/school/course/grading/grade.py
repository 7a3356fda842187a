"""Grade a submission: run each case of each task, compare, and count the points.

    submission ─▶ read_submission ─▶ files, as text
    task, case, seed ─▶ ready ─▶ run_case ─▶ points

The seed of a case comes from the course's secret and the digest of the submission.  So answers
cannot be prepared, and the same submission is always graded alike.  No student gets anything that
was derived from the secret, so a key that can be guessed tells nothing about these values.

A case counts if it passes with the student's own modules, or with the solutions of the tasks that
this one builds on.  So a wrong function costs only its own points.  The report has the failure and
the printed text of the first run alone, because the second run could print these solutions.
"""

import time
from collections.abc import Iterator

from ...toml_files import SchoolError
from ..checker.cases import ReadyCase, run_case
from ..checker.outcome import Outcome
from ..checker.runner import Job, Worker
from ..checker.service import RunFailure
from .assignment import Assignment
from .submission import Submission
from .tasks import Case, Task, seed_of

PROBE = Job({"probe": "def probe(comm, x):\n    return x"}, "probe", "probe", [{"x": 1}] * 2)


def check_sandbox(worker: Worker, allow_none: bool) -> None:
    """Raise SchoolError unless submissions can be run here without harm, or `allow_none` is set."""
    if not worker.is_fenced and not allow_none:
        raise SchoolError("grading others' code needs Linux on x86-64 or ARM, for its sandbox: "
                          "grade there, or in a container; --no-sandbox grades code that you "
                          "trust")
    run = worker.run(PROBE)
    if run.failure is not None:
        raise SchoolError(f"no rank can be started here ({run.failure.message}): grade on another "
                          "machine, or in a container that allows seccomp")


def grade(submission: Submission, assignment: Assignment, secret: str, worker: Worker,
          deadline: float = float("inf")) -> Iterator[Outcome]:
    """Grade the tasks' cases one by one.

    A submission cannot replace the files that are supplied with the assignment.  Cases that would
    start after `deadline` (of time.monotonic) earn nothing.
    """
    files = {**submission.files, **assignment.supplied}
    for task in assignment.tasks:
        for case in task.cases:
            seed = seed_of(secret, submission.digest, task.name, case.number)
            if task.name not in submission.files:
                yield outcome_of(task, case, seed)._replace(failure=RunFailure(
                    None, "Missing", f"there is no {task.name}.py in the submission"))
            elif time.monotonic() > deadline:
                yield outcome_of(task, case, seed)._replace(failure=RunFailure(
                    None, "NoTimeLeft", "the time for the whole submission was over before this "
                    "case"))
            else:
                yield first_or_second(ready(task, case, seed), files,
                                      assignment.solutions_below(task), worker)


def first_or_second(case: ReadyCase, files: dict[str, str], solutions: dict[str, str],
                    worker: Worker) -> Outcome:
    """The outcome of a case with the student's own modules; if it fails, with `solutions`."""
    first, _ = run_case(case, files, worker)
    if first.failure is None or not solutions:
        return first
    second, _ = run_case(case, {**files, **solutions}, worker)
    return first if second.failure else second._replace(printed="")


def ready(task: Task, case: Case, seed: int) -> ReadyCase:
    """A case with the arguments of a seed, their results and limits."""
    arguments = task.arguments(case, seed)
    return ReadyCase(outcome_of(task, case, seed), task.function, task.is_serial, task.tolerance,
                     arguments, task.expected(arguments, case), task.traffic(arguments, case),
                     task.measure(case))


def outcome_of(task: Task, case: Case, seed: int) -> Outcome:
    """The outcome of a case before it is run."""
    return Outcome(task.name, case.number, str(case), case.ranks, case.points, case.is_hidden,
                   f"seed {seed}", seconds=0.0, failure=None)
