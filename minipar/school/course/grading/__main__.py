"""Grade with NumPy alone: python -m school.course.grading COURSE SUBMISSION …"""

import argparse
import io
import sys
from pathlib import Path

from ...toml_files import SchoolError
from ..checker.outcome import as_text, printable, total
from ..checker.runner import WorkerError
from .program import Settings, SubmissionRow, grade_each, grade_one, read_course
from .results import autolab
from .rules import read_late


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of grading."""
    parser.add_argument("course", type=Path, metavar="DIR",
                        help="the folder that `course build` has written")
    parser.add_argument("submission", type=Path, metavar="SUBMISSION",
                        help="a folder, a .zip or .tar, or a .py file")
    parser.add_argument("--each", action="store_true",
                        help="SUBMISSION is a folder of submissions: grade each of them")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="where the results go, as Gradescope reads them; with --each a folder")
    parser.add_argument("--format", choices=["gradescope", "autolab"], default="gradescope",
                        help="of what is printed: Autolab reads the last line, and shows students "
                             "all of it")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S",
                        help="how long a case may take (default %(default)g)")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S",
                        help="how long a submission may take; cases after that earn nothing")
    parser.add_argument("--late", type=Path, metavar="FILE",
                        help="lines NAME,DAYS: how many days after the deadline a submission came")
    parser.add_argument("--no-sandbox", action="store_true",
                        help="run code that you trust where there is no sandbox")


def run(options: argparse.Namespace) -> int:
    """Grade as the options say; print the results.  Raises SchoolError, WorkerError."""
    for name in ("seconds", "budget"):
        if not getattr(options, name) > 0:
            raise SchoolError(f"--{name} takes a positive number, not {getattr(options, name):g}")
    course = read_course(options.course)
    settings = Settings(options.seconds, options.budget, not options.no_sandbox,
                        read_late(options.late) if options.late else {})
    if not options.each:
        row = grade_one(course, options.submission, settings, options.out)
        for line in [*course.rules.told(row.days_late), *row.problems]:
            print(printable(line))
        found = row.outcomes
        if options.format != "autolab":
            print(as_text(found))
        else:
            print(as_text([one for one in found if not one.is_hidden]), autolab(found), sep="\n")
        return 0
    if options.out is None:
        raise SchoolError("--each needs --out DIR: a folder for the results")

    def tell(row: SubmissionRow) -> None:
        words = "; ".join(row.problems)
        if row.outcomes is not None:
            points, most = total(row.outcomes)
            late = f", {row.days_late} days late" * (row.days_late > 0)
            words = f"{points} of {most} points{late}" + f" ({words})" * bool(words)
        print(printable(f"{row.name}: {words}"), flush=True)
    return 1 if grade_each(course, options.submission, options.out, settings, tell) else 0


def main() -> int:
    """Run the program; return its exit status: 2 for a mistake of the user."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")    # a terminal without UTF-8 shows "?" for "✓"
    parser = argparse.ArgumentParser("school.course.grading", description="Grade submissions.")
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except (SchoolError, WorkerError) as error:
        print(f"course: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
