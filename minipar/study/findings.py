"""What the numbers say, in words: what differs, what may be noise, what got slower.

Versions are compared seed by seed, since those of one seed come from the same dense model.  A
difference counts if its mean is larger than the distance between its extremes over the seeds; all
else is called noise.  From one seed nothing can be said.
"""

from collections.abc import Sequence

import numpy as np

from .measure import ROWS, TUNED, Result
from .subjects import Subject
from .summary import column, quality_of

SLOWER, FASTER = 1.1, 0.9       # times the dense model's seconds; between them nothing is said
Rows = dict[str, list[Result]]


def gain(subject: Subject, rows: Rows, name: str, reference: str) -> np.ndarray:
    """By how much a version is better than another, for each seed."""
    sign = 1 if subject.more_is_better else -1
    return sign * np.subtract(*(column(rows[n], "quality") for n in (name, reference)))


def verdict(gains: np.ndarray) -> int:
    """1 better, -1 worse, 0 within noise."""
    if len(gains) < 2 or abs(gains.mean()) <= np.ptp(gains):
        return 0
    return int(np.sign(gains.mean()))


def times(rows: Rows, name: str, field: str) -> float:
    """The mean over the seeds of a cost, over the dense model's."""
    return float(np.mean(column(rows[name], field)) / np.mean(column(rows["dense"], field)))


def paragraph(subject: Subject, rows: Rows) -> str:
    """Some sentences on one subject."""
    said = [f"{subject.name}: dense has {quality_of(subject, rows['dense'])}"
            + (f" {subject.quality}." if subject.more_is_better else f" {subject.quality} "
               "(less is better).")]
    if len(rows["dense"]) < 2:
        said.append("With one seed no difference can be told from noise.")
    else:
        said += _qualities(subject, rows)
    return " ".join(said + _times(rows))


def _qualities(subject: Subject, rows: Rows) -> list[str]:
    found = {row.name: verdict(gain(subject, rows, row.name, row.reference)) for row in ROWS
             if row.name != row.reference and row.kind is None}     # one row of each file
    said = [f"The same model trained on for as many steps as the pruned ones is "
            f"{_judged(found.pop(TUNED))} dense; what was trained on is compared with it, all "
            "else with dense."]
    for value, text in ((1, "Better"), (0, "Within noise"), (-1, "Worse")):
        names = [f"{name} ({_signed(subject, rows, files_row)})"
                 for name, files_row in ((n, _row(n)) for n, v in found.items() if v == value)]
        if names:
            said.append(f"{text}: {', '.join(names)}.")
    fine = [name for name, value in found.items() if value >= 0]
    if fine:
        smallest = min(fine, key=lambda name: times(rows, name, "num_bytes"))
        said.append(f"The smallest file that is not worse: {smallest}, "
                    f"÷ {1 / times(rows, smallest, 'num_bytes'):.1f}.")
    for name, other in (("int4, GPTQ", "int4"), ("small, distilled", "small, from labels")):
        said.append(f"{name} is {_judged(verdict(gain(subject, rows, name, other)))} {other}.")
    return said


def _row(name: str):
    return next(row for row in ROWS if row.name == name)


def _signed(subject: Subject, rows: Rows, row) -> str:
    mean = gain(subject, rows, row.name, row.reference).mean()
    return f"{100 * mean:+.1f} points" if subject.more_is_better else f"{-mean:+.3f} bits"


def _judged(value: int) -> str:
    return {1: "better than", 0: "within noise of", -1: "worse than"}[value]


def _times(rows: Rows) -> list[str]:
    ratios = {row.name: times(rows, row.name, "seconds") for row in ROWS if row.name != "dense"}
    said = []
    for text, chosen in (("Slower than dense", {n: r for n, r in ratios.items() if r > SLOWER}),
                         ("Faster", {n: r for n, r in ratios.items() if r < FASTER})):
        listed = ", ".join(f"{name} (× {ratio:.2f})" for name, ratio
                           in sorted(chosen.items(), key=lambda item: -item[1]))
        said.append(f"{text}: {listed or 'nothing'}.")
    idle = [name for name in ratios if times(rows, name, "num_bytes") < FASTER
            and ratios[name] >= FASTER]
    said.append(f"Of {sum(times(rows, n, 'num_bytes') < FASTER for n in ratios)} rows with a "
                f"smaller file, {len(idle)} are no faster.")
    return said


def paragraphs(subjects: Sequence[Subject], results: dict[str, Rows]) -> str:
    """One for each subject."""
    return "\n\n".join(paragraph(subject, results[subject.name]) for subject in subjects) + "\n"
