"""`minipar course`: build an assignment, grade submissions, report, prove the tasks, slides."""

import argparse
import secrets
import statistics
from collections.abc import Callable
from pathlib import Path

from ...launcher import errors_as_usage
from ...school.course.checker.runner import Worker, WorkerError
from ...school.course.checker.service import Limits
from ...school.course.grading import __main__ as grading
from ...school.course.grading import report
from ...school.course.grading.assignment import load_assignment, names_in
from ...school.course.grading.proof import prove
from ...school.course.grading.rules import Rules
from ...school.course.grading.tasks import ASSIGNMENTS
from ...school.course.lessons import default_out, find_lesson
from ...school.course.packaging.build import build
from ...school.course.packaging.slides import write_slides
from ...school.toml_files import SchoolError
from ..tables import Column, Output, Table


def main(options: argparse.Namespace, output: Output) -> int | None:
    """Run a sub-command.  Raises SchoolError, UsageError."""
    if options.action == "grade":
        with errors_as_usage("", WorkerError):
            return grading.run(options)
    actions: dict[str, Callable[[argparse.Namespace, Output], int | None]] = {
        "list": _list, "build": _build, "report": _report, "prove": _prove, "slides": _slides}
    return actions[options.action](options, output)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their options."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")

    shown = add("list", "show the assignments and their tasks")
    made = add("build", "make the package for students, and what the instructor needs")
    made.add_argument("--exercises", required=True, metavar="NAME", nargs="+",
                      help="assignments or tasks, separated by spaces or commas (course list)")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    made.add_argument("--key", metavar="WORD", help="draws the parameters of the tasks, and the "
                      "values of the public cases (default: a random one)")
    made.add_argument("--late-days", type=int, default=0, metavar="N",
                      help="days after the deadline that cost nothing")
    made.add_argument("--late-penalty", type=float, default=0.0, metavar="PERCENT",
                      help="of the points, for each day after these")
    made.add_argument("--whole-tasks", action="store_true",
                      help="no partial credit: a task counts if all its cases pass")
    made.add_argument("--feedback", default="", metavar="TEXT",
                      help="what every student reads above the results, and in the handout")
    grading.add_arguments(add("grade", "grade a submission, or a folder of them"))
    told = add("report", "show which cases tell who has understood, and common failures")
    told.add_argument("results", type=Path, metavar="RESULTS",
                      help="the folder that grade --each has written")
    proven = add("prove", "show that solutions pass, and that every wrong function loses points")
    proven.add_argument("names", nargs="*", metavar="NAME", help="assignments or tasks "
                        "(default: all)")
    drawn = add("slides", "make slides of lessons: HTML that prints, one file for each")
    drawn.add_argument("lessons", nargs="+", metavar="LESSON", help="numbers, or words of a title")
    drawn.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    for command in (shown, made, proven):
        command.add_argument("--from", dest="folder", type=Path, default=ASSIGNMENTS, metavar="DIR",
                             help="a folder of your own assignments (default: minipar's)")


def _list(options: argparse.Namespace, output: Output) -> None:
    for name in names_in(options.folder):
        assignment = load_assignment(options.folder, [name], "")
        [part] = assignment.parts
        table = Table.of(f"{name}: {part.meta['summary']}", "task", "points", "minutes",
                         "mutants", "draws", Column("variation of", is_text=True))
        for task in assignment.tasks:
            table.add(task.name, task.points, task.minutes, len(task.mutants), task.num_draws,
                      task.exercise or "–")
        output.table(table)


def _build(options: argparse.Namespace, output: Output) -> None:
    key, names = options.key or secrets.token_hex(8), " ".join(options.exercises)
    rules = Rules(options.late_days, options.late_penalty, not options.whole_tasks,
                  options.feedback)
    assignment = build(names.replace(",", " ").split(), key, options.out, options.folder, rules)
    output.text(f"{options.out}: {len(assignment.tasks)} tasks, {assignment.points} points",
                f"for students     {options.out / 'student'}, {options.out / 'student.zip'}",
                f"for you alone    {options.out / 'instructor'}",
                f"how to go on     {options.out / 'README.md'}")


def _slides(options: argparse.Namespace, output: Output) -> None:
    for lesson in [find_lesson(word) for word in options.lessons]:
        output.text(str(write_slides(lesson, options.out, default_out())))


def _report(options: argparse.Namespace, output: Output) -> None:
    results = [one for one in report.read_results(options.results).values() if one]
    earned, most = report.points(results)
    output.text(f"{len(results)} submissions: median {statistics.median(earned):g} of {most:g} "
                f"points, lowest {min(earned):g}, highest {max(earned):g}", "")
    table = Table.of("cases", "case", "points", Column("pass", "%"), "discrimination",
                     Column("", is_text=True))
    for item in report.items(results):
        table.add(f"{item.task}: {item.case}", item.most, round(100 * item.share),
                  round(item.discrimination, 2) if item.discrimination == item.discrimination
                  else None, "hidden" if item.is_hidden else "")
    output.table(table)
    common = Table.of("common failures", "task", "submissions", Column("failure", is_text=True))
    for failure in report.common_failures(results):
        common.add(failure.task, failure.submissions, f"{failure.error}: {failure.message}")
    output.table(common)


def _prove(options: argparse.Namespace, output: Output) -> int:
    names = tuple(options.names)
    table = Table.of("", "task", "points", "draws", "wrong bodies", Column("", is_text=True))
    surprises, seen = 0, set()
    with errors_as_usage("", WorkerError), Worker(Limits(seconds=5.0)) as worker:
        for name in names_in(options.folder):
            assignment = load_assignment(options.folder, [name], "")
            seen |= {name, *(task.name for task in assignment.tasks)}
            for task in assignment.tasks:
                if names and name not in names and task.name not in names:
                    continue
                found = [finding for group in prove(options.folder / name / "tasks.toml", worker,
                                                    assignment.supplied, (task.name,))
                         for finding in group]
                bad = [finding for finding in found if finding.surprise]
                surprises += len(bad)
                table.add(task.name, task.points, task.num_draws, len(task.mutants),
                          "; ".join(f"{finding.version} {finding.surprise}" for finding in bad)
                          or "proven")
    unknown = [name for name in names if name not in seen]
    if unknown:
        raise SchoolError(f"there is no assignment or task {unknown[0]!r}: course list shows them")
    output.table(table)
    return 1 if surprises else 0
