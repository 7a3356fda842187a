"""The findings in words: which versions are better, worse or undecided, and which got slower.

Versions are compared seed by seed, because all versions of one seed come from the same dense
model.  `significance.py` judges qualities as they are, and seconds by the logarithm of their ratio
to the dense model.  One seed shows nothing.
"""

from collections.abc import Sequence

import numpy as np

from .measure import ROWS, TUNED, Result
from .significance import ERROR, half_width, not_worse, verdict
from .subjects import Subject
from .summary import column, quality_of

SLOWER = 1.1        # times the dense model's seconds: a smaller difference is not reported
RULE = (f"Differences are judged seed by seed, by {1 - ERROR:.0%} intervals of Student's t for "
        "their mean (± is half of one). Better, worse, slower and faster mean that the whole "
        f"interval says so: {ERROR:.0%} of comparisons without a difference are called one. "
        "Undecided is neither. Not worse by a margin has to be shown as well, with the same error "
        "for all versions of a model together.")
PAIRS = (("int4, GPTQ", "int4"), ("small, distilled", "small, from labels"))
Rows = dict[str, list[Result]]
FILES = [row for row in ROWS if row.kind is None and row.name not in ("dense", TUNED)]


def gain(subject: Subject, rows: Rows, name: str, reference: str) -> np.ndarray:
    """The gain in quality of a version over `reference`, for each seed."""
    sign = 1 if subject.more_is_better else -1
    return sign * np.subtract(*(column(rows[n], "quality") for n in (name, reference)))


def times(rows: Rows, name: str, field: str) -> float:
    """The mean of a cost over the seeds, divided by the dense model's."""
    return float(np.mean(column(rows[name], field)) / np.mean(column(rows["dense"], field)))


def paragraph(subject: Subject, rows: Rows) -> str:
    """The findings on one subject."""
    sentences = [f"{subject.name}: dense has {quality_of(subject, rows['dense'])}"
            + (f" {subject.quality}." if subject.more_is_better else f" {subject.quality} "
               "(less is better).")]
    if len(rows["dense"]) < 2:
        return " ".join([*sentences, "With one seed nothing can be told from noise."])
    return " ".join([*sentences, *_qualities(subject, rows), *_seconds(rows)])


def _qualities(subject: Subject, rows: Rows) -> list[str]:
    def compared(name: str, other: str) -> str:
        judged = verdict(gain(subject, rows, name, other), subject.step)
        return {1: "better than", 0: "not told apart from", -1: "worse than"}[judged] + f" {other}"
    sentences = ["The same model trained on for as many steps as the pruned ones is "
            f"{compared(TUNED, 'dense')}; what was trained on is compared with it, all else with "
            "dense."]
    gains = {row.name: gain(subject, rows, row.name, row.reference) for row in FILES}
    for value, text in ((1, "Better"), (-1, "Worse"), (0, "Undecided")):
        names = [f"{name} ({_signed(subject, values)})" for name, values in gains.items()
                 if verdict(values, subject.step) == value]
        if names:
            sentences.append(f"{text}: {'; '.join(names)}.")
    fine = sorted(not_worse(gains, subject.margin, subject.step),
                  key=lambda name: times(rows, name, "num_bytes"))
    margin = _amount(subject, subject.margin)
    sentences.append(f"Not worse by {margin}: {'; '.join(fine) or 'none'}.")
    if fine:
        sentences.append(f"The smallest of these: {fine[0]}, "
                    f"÷ {1 / times(rows, fine[0], 'num_bytes'):.1f}.")
    return [*sentences, *(f"{name} is {compared(name, other)}." for name, other in PAIRS)]


def _signed(subject: Subject, gains: np.ndarray) -> str:
    """The mean gain as text, with half of its interval."""
    mean, half = float(np.mean(gains)), half_width(gains, subject.step)
    return f"{100 * mean:+.1f} ± {_amount(subject, half)}" if subject.more_is_better \
        else f"{-mean:+.3f} ± {_amount(subject, half)}"


def _amount(subject: Subject, value: float) -> str:
    return f"{100 * value:.1f} points" if subject.more_is_better else f"{value:.3f} bits"


def _seconds(rows: Rows) -> list[str]:
    """The rows slower or faster than dense by SLOWER, and counts for those with smaller files."""
    logs = {row.name: np.log(np.divide(column(rows[row.name], "seconds"),
                                       column(rows["dense"], "seconds")))
            for row in ROWS if row.name != "dense"}
    margin, sentences = np.log(SLOWER), []
    slower = {name for name, values in logs.items() if verdict(values - margin) > 0}
    faster = {name for name, values in logs.items() if verdict(values + margin) < 0}
    for text, names in (("Slower", slower), ("Faster", faster)):
        listed = "; ".join(f"{name} (× {np.exp(logs[name].mean()):.2f})"
                           for name in sorted(names, key=lambda name: -logs[name].mean()))
        sentences.append(f"{text} than dense by {SLOWER - 1:.0%}: {listed or 'none'}.")
    small = {name for name in logs if times(rows, name, "num_bytes") < 1 / SLOWER}
    idle = {name for name in small if verdict(logs[name] + margin) > 0}
    return [*sentences, f"Rows with a smaller file: {len(small)}; faster by that much: "
                   f"{len(small & faster)}, not: {len(idle)}, "
                   f"undecided: {len(small - faster - idle)}."]


def paragraphs(subjects: Sequence[Subject], results: dict[str, Rows]) -> str:
    """The rule of judgement, if there are several seeds, and a paragraph for each subject."""
    judged = [RULE] * (len(results[subjects[0].name]["dense"]) > 1)
    return "\n\n".join([*judged, *(paragraph(subject, results[subject.name])
                                   for subject in subjects)]) + "\n"
