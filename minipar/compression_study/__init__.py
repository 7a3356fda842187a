"""The study of `minipar study`: it measures models that `compress/` made smaller, on real data.

    minipar study --out out/study           a few minutes on two cores
    minipar study --quick --out out/study   seconds: tiny models, to see that it works

A digits MLP and a text GPT are trained dense, then pruned, quantized and distilled by `compress/`,
from several seeds.  The study compares the quality, bytes, FLOPs and seconds of all versions.  The
report has study.md (table, findings and picture), study.csv, study.json and study.png; the
checkpoints are deleted at the end.

    subjects.py       the two models and their training budgets
    versions.py       train the dense model and make all its compressed versions, one file each
    measure.py        read each file back; its quality, bytes, FLOPs and seconds
    runner.py         train in several processes, measure in one
    significance.py   better, worse or undecided: confidence intervals over paired seeds
    findings.py       the findings in words
    summary.py        the table, for terminal, Markdown, CSV and JSON

`run_and_report` below does all of it.
"""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import viz
from ..atomic_files import write_text
from ..launcher import UsageError
from .findings import paragraphs
from .measure import ROWS
from .runner import Results, run_study
from .subjects import Subject
from .summary import Spread, as_csv, as_json, column, markdown_table


def run_and_report(subjects: tuple[Subject, ...], num_seeds: int, out: Path,
                   console: Console) -> tuple[Results, str]:
    """Train, compress, measure and write the report; return the results and the findings.

    Progress goes to `console`.  Raises OSError if the report cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with ended_in_order(), tempfile.TemporaryDirectory(prefix=".work-", dir=out) as work:
        results = run_study(subjects, num_seeds, Path(work), console)
    findings = paragraphs(subjects, results)
    write(out, subjects, results, num_seeds, findings)
    return results, findings


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Context in which SIGTERM raises an exception, so that temporary files are removed."""
    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)       # a second SIGTERM must not stop the clean-up
        raise UsageError("ended by SIGTERM", status=128 + number)
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def write(out: Path, subjects: tuple[Subject, ...], results: Results, num_seeds: int,
          findings: str) -> None:
    """Write all files of the report."""
    how = f"{num_seeds} seeds, mean ± standard deviation" if num_seeds > 1 else "one seed"
    viz.draw_pareto(out / "study.png", [panel(subject, results) for subject in subjects],
                f"Quality against the model's bytes in its file ({how})")
    write_text(out / "study.csv", as_csv(results))
    write_text(out / "study.json", as_json(results))
    write_text(out / "study.md", f"{how.capitalize()}.\n\n{markdown_table(subjects, results)}\n"
               f"![Quality against bytes](study.png)\n\n{findings}")


def panel(subject: Subject, results: Results) -> "viz.ParetoPanel":
    """The points of a subject's picture, one for each file."""
    points, scale = {}, 100 if subject.more_is_better else 1
    for row in ROWS:
        if row.kind is None:
            rows = results[subject.name][row.name]
            quality = Spread.of(column(rows, "quality"))
            points[row.name] = (Spread.of(column(rows, "num_bytes")).mean, scale * quality.mean,
                                scale * (quality.deviation or 0.0))
    return viz.ParetoPanel(subject.name, subject.quality + ", %" * subject.more_is_better, points,
                 subject.more_is_better)
