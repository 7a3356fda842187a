"""Prove an assignment: each solution earns all points, each stub and each wrong body loses some.

For every combination of a task's parameters, since any may be drawn.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..checker.runner import Worker
from .grade import run_case
from .tasks import Task, seed_of, variants


class Finding(NamedTuple):
    """A version of a function: the points that it earned, and the first failure."""

    task: Task
    version: str
    points: int
    failure: str

    @property
    def surprise(self) -> str:
        """A contradiction to what is to be proven, in a sentence; "" if all is well."""
        if self.version == "solution":
            return f"does not pass: {self.failure}" if self.points < self.task.points else ""
        return "earns all points" if self.points == self.task.points else ""


def prove(file: Path, worker: Worker, supplied: dict[str, str],
          names: tuple[str, ...] = ()) -> Iterator[list[Finding]]:
    """The findings on each task of a file, for each combination of its parameters."""
    for task in variants(file):
        if names and task.name not in names:
            continue
        versions = {"solution": task.solution, "stub": "raise NotImplementedError",
                    **{name: wrong.body for name, wrong in task.mutants.items()}}
        yield [try_version(task, version, body, worker, supplied)
               for version, body in versions.items()]


def try_version(task: Task, version: str, body: str, worker: Worker,
                supplied: dict[str, str]) -> Finding:
    """Run a version on all cases: a wrong one until its first failure."""
    points, first = 0, ""
    files = {**supplied, task.name: task.module(body)}
    for case in task.cases:
        outcome = run_case(task, case, seed_of("proof", version, task.name, case.number), files,
                          worker)
        points += outcome.points
        if outcome.failure is not None:
            first = first or f"{case}: {outcome.failure.error}: {outcome.failure.message}"
            break
    return Finding(task, version, points, first)
