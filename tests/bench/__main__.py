"""`make bench`: minipar against PyTorch and hand-written NumPy, in one table.

    python -m tests.bench                       everything; PyTorch's rows appear if it is installed
    python -m tests.bench mlp gpt --quick
    python -m tests.bench bubbles --out pictures

A measurement that fails leaves a row that says why; the others are measured all the same, and the
exit status is 1.
"""

import argparse
import sys
from pathlib import Path

from minipar.commands.main import Parser
from minipar.commands.parser import add_json
from minipar.commands.tables import Output, Shown, Table
from minipar.launcher import INTERRUPTED, UsageError, report_usage

from .runner import MEASUREMENTS, measure_all, settings, work
from .timing import Row


def main(argv: list[str] | None = None) -> int:
    """Measure and print the table; return the exit status."""
    parser = Parser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"measurements (all): {', '.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions (20)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a rough look")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="folder for pictures (of bubbles, serve)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_json(parser)
    options = parser.parse_args(argv)
    output = Output("bench", options.json)
    try:
        status = run(options, output)
    except UsageError as error:
        return report_usage(error)
    output.end()
    return status


def run(options: argparse.Namespace, output: Output) -> int:
    """Measure what the options name; return the exit status.  Raises UsageError."""
    num_rounds = 4 if options.quick else options.rounds
    for name in options.names:
        if name not in MEASUREMENTS:
            raise UsageError(f"there is no measurement {name!r}: choose from "
                             f"{', '.join(MEASUREMENTS)}")
    if num_rounds < 1:
        raise UsageError(f"--rounds takes a positive whole number, not {num_rounds}")
    if options.worker:                  # a process that the command started
        work(options.names[0], num_rounds, options.out)
        return 0
    if options.out is not None:
        make_folder(options.out)
    table = Table.of(f"medians of {num_rounds} interleaved rounds, float32, one thread per rank",
                     "what", "minipar", "against", "ratio", "target")
    warnings, failed, names = [], [], options.names or list(MEASUREMENTS)
    error = None
    try:
        with output.console.status(f"measuring {names[0]}") as status:
            for i, (name, rows, warning) in enumerate(measure_all(names, num_rounds, options.out)):
                for row in rows:
                    table.add(*cells(row))
                table.sections.append(len(table.rows) - 1)
                warnings += [warning] if warning else []
                failed += [name] if any(row.has_failed for row in rows) else []
                status.update(f"measuring {names[min(i + 1, len(names) - 1)]}")
    except KeyboardInterrupt:           # what was measured until then is shown
        error = UsageError("interrupted", status=INTERRUPTED)
    if failed and not error:
        error = UsageError(f"{len(failed)} of {len(names)} measurements failed "
                           f"({', '.join(failed)}): the table says why", status=1)
    output.text(settings())
    output.table(table)
    output.text(*warnings)
    return report_usage(error) if error else 0


def make_folder(folder: Path) -> None:
    """Make the folder for pictures before hours of measuring.  Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError.of(error) from error


def cells(row: Row) -> list[str | Shown | None]:
    """One row; its ratio is green where it meets the target."""
    if row.has_failed:
        return [row.what, Shown(row.ours, row.ours, "red"), row.theirs, Shown(None, ""),
                Shown(None, "")]
    if row.ratio is None:
        return [row.what, row.ours, row.theirs, Shown(None, ""), Shown(None, "")]
    ratio = f"{row.ratio:.3f}"
    if row.target is None:
        return [row.what, row.ours, row.theirs, Shown(row.ratio, ratio), Shown(None, "")]
    sign = "≥" if row.at_least else "≤"
    return [row.what, row.ours, row.theirs,
            Shown(row.ratio, ratio, "green" if row.met else "red"),
            Shown(row.target, f"{sign} {row.target:.2f}")]


if __name__ == "__main__":
    sys.exit(main())
