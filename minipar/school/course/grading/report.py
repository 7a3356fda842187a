"""A report on a folder of results: item analysis, and common failures.

Each case has the share of submissions that pass it, and its discrimination.  That is the
correlation of passing it with the points of all other cases (corrected item-total correlation).
Below about 0.2 a case tells little about who has understood; below 0 the case may be wrong.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...toml_files import SchoolError


class Item(NamedTuple):
    """A case over all submissions."""

    task: str
    case: str
    is_hidden: bool
    most: float
    share: float                # that pass
    discrimination: float       # nan if all pass or none does


class Common(NamedTuple):
    """A failure that several submissions have in the same task."""

    task: str
    error: str
    message: str
    submissions: int


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a folder by submission.  Raises SchoolError if there are none."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            results = json.loads(path.read_text(encoding="utf-8"))
            found[path.stem] = results if results["tests"] else {}
        except (ValueError, KeyError, TypeError):
            raise SchoolError(f"{path} is no results.json of grading: the folder should have "
                              "what `course grade --each --out` has written") from None
    cases = {path: [test["name"] for test in one["tests"]] for path, one in found.items() if one}
    for path, names in cases.items():
        if names != next(iter(cases.values())):
            raise SchoolError(f"{folder} mixes assignments: {path} and {next(iter(cases))} have "
                              "other cases; give each assignment a folder of its own")
    if not cases:
        raise SchoolError(f"{folder} has no results: `course grade DIR FOLDER --each --out "
                          f"{folder}` writes them")
    return found


def items(results: Sequence[dict[str, Any]]) -> list[Item]:
    """The cases, in the order of the assignment."""
    tests = results[0]["tests"]
    scores = np.array([[test["score"] for test in one["tests"]] for one in results], float)
    passed = np.array([[test["status"] == "passed" for test in one["tests"]] for one in results])
    found = []
    for column, test in enumerate(tests):
        own, rest = passed[:, column], scores.sum(1) - scores[:, column]
        varies = own.std() > 0 and rest.std() > 0
        found.append(Item(test["extra_data"]["task"], test["extra_data"]["case"],
                          test["extra_data"]["hidden"], test["max_score"],
                          float(own.mean()),
                          float(np.corrcoef(own, rest)[0, 1]) if varies else float("nan")))
    return found


def common_failures(results: Sequence[dict[str, Any]], most: int = 10) -> list[Common]:
    """The most frequent failures; messages that differ only in numbers count as one."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in results:
        counts.update({(test["extra_data"]["task"], test["extra_data"]["error"],
                        without_numbers(test["extra_data"]["message"]))
                       for test in one["tests"] if test["status"] == "failed"})
    return [Common(*failure, count) for failure, count in counts.most_common(most)]


def without_numbers(message: str) -> str:
    """The first line of a message, with … for each number."""
    first = message.split("\n")[0]
    return re.sub(r"-?\d[\d,]*(\.\d+)?(e[-+]?\d+)?", "…", first)[:120]


def points(results: Sequence[dict[str, Any]]) -> tuple[list[float], float]:
    """(the points of each submission, the points that can be had)."""
    return ([float(one["score"]) for one in results],
            float(sum(test["max_score"] for test in results[0]["tests"])))
