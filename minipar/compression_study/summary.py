"""The study's results as one table: on the terminal, in Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..units import in_bytes, time_unit
from .measure import ROWS, Result
from .runner import Results
from .subjects import ACCURACY, Subject


class Spread(NamedTuple):
    """The mean over the seeds and the standard deviation, None for a single seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of `values`."""
        return cls(float(np.mean(values)),
                   float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def text(self, scale: float, digits: int, unit: str = "") -> str:
        """As text: 97.1 ± 0.3 %."""
        spread = "" if self.deviation is None else f" ± {self.deviation * scale:.{digits}f}"
        return f"{self.mean * scale:.{digits}f}{spread}{unit}"


def column(results: Sequence[Result], name: str) -> list[float]:
    """The field `name` of each seed's result."""
    return [getattr(result, name) for result in results]


def quality_of(subject: Subject, results: Sequence[Result]) -> str:
    """The quality over the seeds as text."""
    spread = Spread.of(column(results, "quality"))
    return spread.text(100, 1, " %") if subject.quality == ACCURACY else spread.text(1, 3)


HEADER = ("quality", "bytes", "ratio", "FLOPs/sample", "ratio", "time/batch", "ratio")


def numbers(rows: dict[str, list[Result]]) -> Iterator[tuple[str, list[float]]]:
    """The name of each row, and the numbers below HEADER: means over the seeds, in base units."""
    means = {row.name: {name: float(np.mean(column(rows[row.name], name)))
                        for name in Result._fields} for row in ROWS}
    dense = means["dense"]
    for name, of_row in means.items():
        yield name, [of_row["quality"], *(number for cost in ("num_bytes", "flops", "seconds")
                                          for number in (of_row[cost], of_row[cost] / dense[cost]))]


def lines(subject: Subject, rows: dict[str, list[Result]]) -> Iterator[tuple[str, ...]]:
    """The table's cells; ratios are to the dense model."""
    unit, scale = time_unit(float(np.mean(column(rows["dense"], "seconds"))))
    for name, (_, num_bytes, less_bytes, flops, less_flops, _, faster) in numbers(rows):
        seconds = Spread.of(column(rows[name], "seconds")).text(scale, 2, f" {unit}")
        yield (name, quality_of(subject, rows[name]), in_bytes(num_bytes), f"{less_bytes:.2f}",
               f"{flops:,.0f}", f"{less_flops:.2f}", seconds, f"{faster:.2f}")


def markdown_table(subjects: Sequence[Subject], results: Results) -> str:
    """One table of all subjects."""
    text = ["| | " + " | ".join(HEADER) + " |", "|---|" + "---:|" * len(HEADER)]
    for subject in subjects:
        text.append(f"| **{subject.name}** ({subject.quality}) |" + " |" * len(HEADER))
        text += ["| " + " | ".join(cells) + " |"
                 for cells in lines(subject, results[subject.name])]
    return "\n".join(text) + "\n"


def as_csv(results: Results) -> str:
    """A line for each subject, row and seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["subject", "version", "seed", *Result._fields])
    for subject, rows in results.items():
        for name, of_seeds in rows.items():
            writer.writerows([subject, name, seed, *result]
                             for seed, result in enumerate(of_seeds))
    return out.getvalue()


def as_json(results: Results) -> str:
    """results[subject][version] = a list with an object for each seed."""
    return json.dumps({subject: {name: [result._asdict() for result in of_seeds]
                                 for name, of_seeds in rows.items()}
                       for subject, rows in results.items()}, indent=1, ensure_ascii=False)
