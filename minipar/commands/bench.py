"""`minipar bench [NAME …]`: minipar against PyTorch and hand-written NumPy, in one table.

    minipar bench                       everything; PyTorch's rows appear where it is installed
    minipar bench mlp gpt --quick
    minipar bench bubbles --out pictures

What each name measures is in minipar/bench.
"""

import argparse
from pathlib import Path

from ..bench.runner import MEASUREMENTS, measure_all, settings, work
from ..bench.timing import Row
from ..launcher import UsageError
from .tables import Output, Shown, Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"measurements (all): {', '.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions (20)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a rough look")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="folder for pictures (of bubbles, serve)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def main(options: argparse.Namespace, output: Output) -> None:
    """Measure and print the table.  Raises UsageError."""
    num_rounds = 4 if options.quick else options.rounds
    for name in options.names:
        if name not in MEASUREMENTS:
            raise UsageError(f"there is no measurement {name!r}: choose from "
                             f"{', '.join(MEASUREMENTS)}")
    if num_rounds < 1:
        raise UsageError(f"--rounds takes a positive whole number, not {num_rounds}")
    if options.worker:                  # a process that the command started
        work(options.names[0], num_rounds, options.out)
        return
    table = Table.of(f"medians of {num_rounds} interleaved rounds, float32, one thread per rank",
                     "what", "minipar", "against", "ratio", "target")
    warnings, names = [], options.names or list(MEASUREMENTS)
    with output.console.status(f"measuring {names[0]}") as status:
        for i, (_, rows, warning) in enumerate(measure_all(names, num_rounds, options.out)):
            for row in rows:
                table.add(*cells(row))
            table.sections.append(len(table.rows) - 1)
            warnings += [warning] if warning else []
            status.update(f"measuring {names[min(i + 1, len(names) - 1)]}")
    output.text(settings())
    output.table(table)
    output.text(*warnings)


def cells(row: Row) -> list[str | Shown | None]:
    """One row; its ratio is green where it meets the target."""
    if row.ratio is None:
        return [row.what, row.ours, row.theirs, Shown(None, ""), Shown(None, "")]
    ratio = f"{row.ratio:.3f}"
    if row.target is None:
        return [row.what, row.ours, row.theirs, Shown(row.ratio, ratio), Shown(None, "")]
    sign = "≥" if row.at_least else "≤"
    return [row.what, row.ours, row.theirs,
            Shown(row.ratio, ratio, "green" if row.met else "red"),
            Shown(row.target, f"{sign} {row.target:.2f}")]
