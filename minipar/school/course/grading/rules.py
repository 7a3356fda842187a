"""An instructor's rules for points: late days, partial credit, and a text for students.

    minipar course build … --late-days 2 --late-penalty 10 --whole-tasks --feedback "Ask in …"

They travel in course.json.  Gradescope tells when a submission came; elsewhere `grade --late FILE`
does: lines like "anna,3", with days after the deadline.
"""

import csv
import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from ...toml_files import SchoolError
from ..checker.outcome import Outcome

METADATA = "submission_metadata.json"       # Gradescope puts it beside the submission


class Rules(NamedTuple):
    """The days late that are free, the percent for each further day; whether cases count alone."""

    late_days: int = 0
    late_penalty: float = 0.0
    partial_credit: bool = True
    feedback: str = ""

    def sentences(self) -> list[str]:
        """The rules in words, for the handout."""
        free = f", but the first {self.late_days}" if self.late_days else ""
        return [*[f"Each day after the deadline{free} costs {self.late_penalty:g} % of the points."]
                * (self.late_penalty > 0),
                *["A task counts if all its cases pass, the hidden ones too."]
                * (not self.partial_credit), *[self.feedback] * bool(self.feedback)]

    def told(self, days: int) -> list[str]:
        """The lines that a student reads above the results."""
        off = 100 * (1 - self.share(days))
        return [*[f"{days} day{'s' * (days > 1)} late: {off:g} % off"] * (days > 0),
                *[self.feedback] * bool(self.feedback)]

    def share(self, days: int) -> float:
        """The share of its points that a submission keeps when it comes `days` late."""
        return max(0.0, 1 - self.late_penalty * max(0, days - self.late_days) / 100)

    def score(self, points: int, days: int) -> float:
        """The points that a submission keeps when it comes `days` late."""
        share = self.share(days)
        return points if share == 1 else round(points * share, 2)

    def credited(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes, with no points for a failed task unless partial credit is given."""
        failed = {outcome.task for outcome in outcomes if outcome.failure}
        return [outcome._replace(counts=self.partial_credit or outcome.task not in failed)
                for outcome in outcomes]


PLAIN = Rules()


def days_late(place: Path) -> int:
    """The days that Gradescope says a submission came after its deadline, begun ones as whole."""
    try:
        told = json.loads((place.parent / METADATA).read_text(encoding="utf-8"))
        after = (datetime.fromisoformat(told["created_at"])
                 - datetime.fromisoformat(told["assignment"]["due_date"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return max(0, math.ceil(after.total_seconds() / 86400))


def read_late(file: Path) -> dict[str, int]:
    """Days late by submission.  Raises SchoolError for a line that is not NAME,DAYS."""
    try:
        rows = [row for row in csv.reader(file.read_text(encoding="utf-8-sig").splitlines()) if row]
        return {name.strip(): math.ceil(float(days)) for name, days in rows}
    except (OSError, ValueError) as error:
        raise SchoolError(f"{file}: each line should be NAME,DAYS, as anna,3, without a header "
                          f"({error})") from None
