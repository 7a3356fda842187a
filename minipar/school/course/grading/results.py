"""Results in the forms that others read: Gradescope and Autolab.

Gradescope's results.json: https://gradescope-autograders.readthedocs.io/en/latest/specs/
Autolab: the last line of output, {"scores": {task: points}}.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checker.outcome import Outcome, by_task, describe, total
from .rules import PLAIN, Rules
from .submission import Submission

HIDDEN = "after_published"          # when students see hidden cases


def gradescope(outcomes: Sequence[Outcome], submission: Submission,
               rules: Rules = PLAIN) -> dict[str, Any]:
    """The content of results.json."""
    tests = [{
        "name": f"{outcome.task}: {outcome.case}", "number": str(outcome.number + 1),
        "score": outcome.points, "max_score": outcome.most,
        "status": "failed" if outcome.failure else "passed", "output": describe(outcome),
        "output_format": "text", "visibility": HIDDEN if outcome.is_hidden else "visible",
        "extra_data": {"task": outcome.task, "case": outcome.case, "ranks": outcome.ranks,
                       "hidden": outcome.is_hidden, **failure_of(outcome)}}
        for outcome in outcomes]
    days = submission.days_late
    return {"score": rules.score(total(outcomes)[0], days),
            "execution_time": round(sum(outcome.seconds for outcome in outcomes)),
            "output": "\n".join([*rules.told(days), *submission.problems]),
            "stdout_visibility": "hidden",
            "tests": tests, "leaderboard": leaderboard(outcomes),
            "extra_data": {"submission": submission.name, "digest": submission.digest,
                           "days late": days}}


def failure_of(outcome: Outcome) -> dict[str, str]:
    """The failure of an outcome, for reports."""
    failure = outcome.failure
    return {"error": failure.error, "message": failure.message, "line": failure.line} \
        if failure else {"error": "", "message": "", "line": ""}


def leaderboard(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For each thing that a capstone measures, the sum over its cases; smaller is better.

    A capstone counts only if all its cases pass.
    """
    sums: dict[str, float] = {}
    for task in dict.fromkeys(outcome.task for outcome in outcomes if outcome.measured):
        own = [outcome for outcome in outcomes if outcome.task == task]
        if not any(outcome.failure for outcome in own):
            for outcome in own:
                for name, value in outcome.measured.items():
                    sums[name] = sums.get(name, 0) + value
    return [{"name": name, "value": value, "order": "asc"} for name, value in sums.items()]


def autolab(outcomes: Sequence[Outcome]) -> str:
    """The last line of output that Autolab reads."""
    return json.dumps({"scores": {task: points
                                  for task, (points, _) in by_task(outcomes).items()}})


def write_whole(path: Path, content: str) -> None:
    """Write a file whole or not at all; characters that UTF-8 lacks become escapes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8",
                                     errors="backslashreplace") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
