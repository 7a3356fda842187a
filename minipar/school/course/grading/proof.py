"""Prove an assignment: each solution earns all points, each stub and each wrong body loses some.

And a function that does no work, but returns an argument, a part of one, zeros or None, earns no
points.  All this is shown for every combination of a task's parameters, since any may be drawn.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checker.cases import run_case
from ..checker.compare import judge
from ..checker.runner import Worker
from ..checker.service import RunResult
from .grade import ready
from .tasks import Task, seed_of, variants

NOTHING = "a function that does nothing"


class Finding(NamedTuple):
    """A version of a function: the points that it earned, and the first failure."""

    task: Task
    version: str
    points: int
    failure: str

    @property
    def surprise(self) -> str:
        """What contradicts the proof, in a sentence; "" if nothing does."""
        if self.version == "solution":
            return f"does not pass: {self.failure}" if self.points < self.task.points else ""
        if self.version == NOTHING:
            return f"earns {self.points} points: {self.failure}" if self.points else ""
        return "earns all points" if self.points == self.task.points else ""


def prove(file: Path, worker: Worker, supplied: dict[str, str],
          names: tuple[str, ...] = ()) -> Iterator[list[Finding]]:
    """The findings on each task of a file, for each combination of its parameters."""
    for task in variants(file):
        if names and task.name not in names:
            continue
        versions = {"solution": task.solution, "stub": "raise NotImplementedError",
                    **{name: wrong.body for name, wrong in task.mutants.items()}}
        yield [*(try_version(task, version, body, worker, supplied)
                 for version, body in versions.items()), try_nothing(task)]


def try_version(task: Task, version: str, body: str, worker: Worker,
                supplied: dict[str, str]) -> Finding:
    """Run a version on the cases up to its first failure; count the points until then."""
    points, first = 0, ""
    files = {**supplied, task.name: task.module(body)}
    for case in task.cases:
        seed = seed_of("proof", version, task.name, case.number)
        outcome, _ = run_case(ready(task, case, seed), files, worker)
        points += outcome.points
        if outcome.failure is not None:
            first = f"{case}: {outcome.failure.error}: {outcome.failure.message}"
            break
    return Finding(task, version, points, first)


def try_nothing(task: Task) -> Finding:
    """The points that doing nothing earns; `failure` names the first such case and its result."""
    points, where = 0, ""
    for case in task.cases:
        tried = ready(task, case, seed_of("proof", NOTHING, task.name, case.number))
        ranks = [without_work(arguments) for arguments in tried.arguments]
        for name in ranks[0]:
            run = RunResult([{"return": results.get(name), "arguments": arguments}
                             for results, arguments in zip(ranks, tried.arguments)])
            if judge(run, tried.expected, {}, tried.tolerance, tried.measure)[0] is None:
                points += case.points
                where = where or f"{case}: {name}"
                break
    return Finding(task, NOTHING, points, where)


def without_work(arguments: dict[str, Any]) -> dict[str, Any]:
    """By name, what a function can return that does nothing with its arguments."""
    found: dict[str, Any] = {"None": None, "[]": [], "0": 0, "0.0": 0.0, "True": True,
                             "False": False, **arguments, "all arguments": [*arguments.values()]}
    names = list(arguments)
    for name, following in zip(names, names[1:]):
        found[f"{name}, {following}"] = arguments[name], arguments[following]
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            found |= {f"{name}, {what}, of {dtype}": fill(value, dtype=dtype)
                      for what, fill in (("zeros", np.zeros_like), ("ones", np.ones_like))
                      for dtype in ("float", "int", "bool")}
            found[f"{name}, flat"] = value.ravel()
        if isinstance(value, list | tuple) and len(value):
            found[f"{name}[0]"] = value[0]
            if all(isinstance(part, np.ndarray) for part in value):
                found[f"{name}, in a row"] = np.concatenate([np.ravel(part) for part in value])
                found[f"{name}, zeros"] = [np.zeros_like(part) for part in value]
    return found
