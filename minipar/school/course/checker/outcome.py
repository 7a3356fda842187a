"""The outcome of a case, in words and in points; the points of many."""

from collections.abc import Sequence
from typing import NamedTuple

from .service import RunFailure

PRINTED = 2000              # characters of what a rank printed, in a report


class Outcome(NamedTuple):
    """The outcome of a case, perhaps not run yet; `most` are the points that it can earn."""

    task: str
    number: int
    case: str                   # in words: "4 ranks, n 20"
    ranks: int
    most: int
    is_hidden: bool
    seed: str                   # also in words
    seconds: float
    failure: RunFailure | None
    printed: str = ""
    measured: dict[str, float] = {}
    counts: bool = True         # False if its task counts as a whole, and another case fails

    @property
    def points(self) -> int:
        """Points that it earned."""
        return self.most if self.counts and not self.failure else 0


def describe(outcome: Outcome) -> str:
    """An outcome for the student: what was expected, what came, where, and with which seed."""
    failure = outcome.failure
    if failure is None:
        return f"passed in {outcome.seconds:.2f} s"
    who = "" if failure.rank is None or outcome.ranks == 1 else f"rank {failure.rank}: "
    kind = "" if failure.error in ("WrongValue", "Traffic", "Missing", "Deadlock") \
        else f"{failure.error}: "
    lines = [f"{who}{kind}{failure.message}"]
    if failure.line and failure.error != "Deadlock":
        lines.append(f"at {failure.line}")
    lines.append(f"with {outcome.case}, {outcome.seed}")
    if outcome.printed.strip():
        lines.append(f"printed: {outcome.printed.strip()[:PRINTED]}")
    return printable("\n".join(lines))


def by_task(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """(points, points that can be had) by task."""
    sums: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        points, most = sums.get(outcome.task, (0, 0))
        sums[outcome.task] = points + outcome.points, most + outcome.most
    return sums


def total(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(points, points that can be had)."""
    return sum(outcome.points for outcome in outcomes), sum(outcome.most for outcome in outcomes)


def as_text(outcomes: Sequence[Outcome]) -> str:
    """A line for each case; the first failure of each task in full; the points."""
    lines, explained = [], set()
    for outcome in outcomes:
        numbers = "".join(f", {name} {value:,.10g}" for name, value in outcome.measured.items())
        lines.append(f"{'✗' if outcome.failure else '✓'} {outcome.task}: {outcome.case}  "
                     f"({outcome.points} of {outcome.most}{numbers})")
        if outcome.failure and outcome.task not in explained:
            explained.add(outcome.task)
            lines += ["    " + line for line in describe(outcome).split("\n")]
    points, most = total(outcomes)
    return "\n".join([*lines, f"{points} of {most} points"])


def printable(text: str) -> str:
    """A text without control characters, which a terminal obeys, and without lone surrogates."""
    return "".join(c for c in text if c in "\n\t" or c >= " " and not 0x7F <= ord(c) <= 0x9F
                   and not 0xD800 <= ord(c) <= 0xDFFF)
