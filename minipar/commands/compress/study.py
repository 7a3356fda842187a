"""`minipar study`: what every way of compression costs and saves, in one table.

    minipar study --out out/study           a few minutes on two cores
    minipar study --quick --out out/study   seconds: the same on tiny models, which shows nothing

Into the folder go study.md, study.csv, study.json and study.png.
"""

import argparse
import time
from pathlib import Path

from rich.box import SIMPLE_HEAD

from ...compression_study import run_and_report
from ...compression_study.measure import Result
from ...compression_study.subjects import FULL, QUICK, Subject
from ...compression_study.summary import HEADER, lines, numbers
from ...launcher import UsageError
from ..tables import Column, Output, Shown, Table

SEEDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--quick", action="store_true",
                        help="tiny models, hardly trained: to see whether it works")
    parser.add_argument("--seeds", type=int, metavar="N",
                        help=f"repeat everything with N seeds ({SEEDS}; quick: 1)")
    parser.add_argument("--out", type=Path, default=Path("out/study"), metavar="DIR",
                        help="folder of table and picture (out/study)")


def main(options: argparse.Namespace, output: Output) -> None:
    """Train, compress, measure, report.  Raises UsageError."""
    seeds = (1 if options.quick else SEEDS) if options.seeds is None else options.seeds
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: give a number of at least 1")
    subjects, started = QUICK if options.quick else FULL, time.perf_counter()
    try:
        results, findings = run_and_report(subjects, seeds, options.out, output.console)
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error
    for subject in subjects:
        output.table(study_table(subject, results[subject.name]), SIMPLE_HEAD)
    output.text(f"\n{findings}", f"{time.perf_counter() - started:.0f} s; "
                f"{options.out / 'study.md'}, study.csv, study.json, study.png")


def study_table(subject: Subject, rows: dict[str, list[Result]]) -> Table:
    """All versions of one model: means over the seeds."""
    units = dict(zip(HEADER, ("", "B", "", "", "", "s", "")))
    table = Table.of(subject.name, "version", subject.quality.replace("character", "char"),
                     *(Column(name, units[name]) for name in HEADER[1:]))
    for (name, *texts), (_, values) in zip(lines(subject, rows), numbers(rows)):
        table.add(name, *map(Shown, values, texts))
    return table
