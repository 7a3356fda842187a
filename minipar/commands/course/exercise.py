"""The command line of the exercises: list, start, check, hint, restore, prove."""

import argparse
import importlib.util
import sys
import textwrap
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from ...environment import minipar_command
from ...school.exercises import entries
from ...school.exercises.check import check, check_all, print_task, say
from ...school.exercises.judge import LIMIT
from ...school.exercises.proof import RIGHT, VariantFinding, prove
from ...school.exercises.workspace import Workspace
from ...school.toml_files import SchoolError
from ..parser import ArgumentParser, add_json
from ..tables import Output, Table

ROOT = Path(__file__).resolve().parents[3]


def main(argv: list[str], root: Path = ROOT) -> int:
    """Do what `argv` asks in the work tree `root`; return the exit status.

    0: done, passed or proven; 1: not passed or not proven; 2: the request cannot be met; 130:
    interrupted.
    """
    try:
        options = _parser().parse_args(argv)
        as_json, workspace = getattr(options, "json", False), Workspace(root.resolve())
        console = Console(highlight=False, markup=False, quiet=as_json)
        status = options.run(workspace, console, options)
        if as_json:
            output = Output(f"exercise {argv[0]}", as_json)
            output.table(states(workspace, options))
            output.end()
        return status
    except SchoolError as error:
        print(f"minipar: {error}", file=sys.stderr)
        return 2
    except OSError as error:            # a tree without write permission
        print(f"minipar: {error.filename}: {error.strerror}: exercises need a work tree that you "
              "may write in (git clone)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


class _Parser(ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> None:
        raise SchoolError(f"{message} ({self.prog} --help shows how)")


def _parser() -> _Parser:
    parser = _Parser(prog="minipar exercise", description="Write parts of minipar yourself.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, run, text in (
            ("list", _list, "show all exercises"),
            ("start", _start, "replace a function with a stub"),
            ("check", _check, "run an exercise's tests on what you wrote"),
            ("hint", _hint, "show the next hint; hint NAME 1 shows the first again"),
            ("restore", _restore, "put the reference back; your version is kept"),
            ("prove", _prove, "show that the tests tell right from wrong")):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name in ("start", "hint", "restore"):
            command.add_argument("name", metavar="NAME")
        if name == "list":
            command.add_argument("--topic", metavar="TOPIC",
                                 help=f"show this topic only: {', '.join(entries.TOPICS)}")
            command.add_argument("--kind", metavar="KIND",
                                 help="core (an idea that everyone should write once) or plumbing "
                                      "(what a real system needs around it)")
        if name == "check":
            command.add_argument("name", metavar="NAME", nargs="?",
                                 help="without it, test everything you wrote, and count the points")
            command.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS",
                                 help="how long the tests may take (default %(default)g)")
        if name in ("list", "check"):
            add_json(command)
        if name == "hint":
            command.add_argument("number", metavar="N", type=int, nargs="?",
                                 help="which hint: 1 is gentle, the last nearly the answer "
                                      "(default: the one after the last that was shown)")
        if name == "prove":
            command.add_argument("names", metavar="NAME", nargs="*",
                                 help="prove these only (default: all exercises)")
    return parser


def states(workspace: Workspace, options: argparse.Namespace) -> Table:
    """The exercises that were listed or checked, and their states, for scripts."""
    table = Table.of("exercises", "exercise", "topic", "lesson", "points", "minutes", "kind",
                     "state")
    topic, kind, name = (getattr(options, key, None) for key in ("topic", "kind", "name"))
    for exercise in workspace.exercises.values():
        if topic in (None, exercise.topic) and kind in (None, exercise.kind) \
                and name in (None, exercise.name):
            table.add(exercise.name, exercise.topic, exercise.lesson, exercise.points,
                      exercise.minutes, exercise.kind, workspace.state(exercise))
    return table


def _list(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    for what, known in (("topic", entries.TOPICS), ("kind", entries.EXERCISE_KINDS)):
        asked = getattr(options, what)
        if asked is not None and asked not in known:
            raise SchoolError(f"there is no {what} {asked!r}: choose from {', '.join(known)}")
    table = RichTable(*(Column(name, no_wrap=True) for name in (
        "exercise", "lesson", "points", "minutes", "kind", "state")), box=SIMPLE_HEAD,
        pad_edge=False, collapse_padding=True)
    reached = total = 0
    for topic in [options.topic] if options.topic else entries.TOPICS:
        chosen = [exercise for exercise in workspace.exercises.values() if exercise.topic == topic
                  and options.kind in (None, exercise.kind)]
        if chosen:
            table.add_row(f"[{topic}]")
        for exercise in chosen:
            state = workspace.state(exercise)
            total += exercise.points
            reached += exercise.points if state == "passed" else 0
            about = [*textwrap.wrap(exercise.title, 28), *(f"after {n}" for n in exercise.needs)]
            table.add_row("\n  ".join([exercise.name, *about]), f"{exercise.lesson:02}",
                          str(exercise.points), str(exercise.minutes), exercise.kind, state)
    console.print(table)
    say(console, f"{reached} of {total} points.  To begin: "
                 + minipar_command("exercise start NAME"))
    return 0


def _start(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    exercise = workspace.find(options.name)
    workspace.start(exercise)
    say(console, f"{exercise.title} ({exercise.points} points, about {exercise.minutes} minutes)")
    print_task(console, exercise)
    todo = [name for name in exercise.needs if workspace.state(workspace.find(name)) != "passed"]
    if todo:
        say(console, f"\nEasier after: {', '.join(todo)}")
    for target in exercise.hidden:
        say(console, f"\nHidden until you restore: {target.function} of {target.file}")
    say(console, f"\nWrite it in {workspace.place(exercise)}, then:\n"
                 f"  {minipar_command(f'exercise check {exercise.name}')}\n"
                 f"  {minipar_command(f'exercise hint {exercise.name}')}")
    return 0


def _check(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    if importlib.util.find_spec("pytest") is None:
        raise SchoolError("checking needs pytest: make setup, or pip install -e '.[dev]'")
    if options.limit <= 0:
        raise SchoolError(f"--limit takes a positive number of seconds, not {options.limit:g}")
    if options.name is None:
        return 0 if check_all(workspace, console, options.limit) else 1
    return 0 if check(workspace, console, workspace.find(options.name), options.limit) else 1


def _hint(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    exercise = workspace.find(options.name)
    total = len(exercise.hints)
    following = min(workspace.last_hint(exercise) + 1, total)
    number = following if options.number is None else options.number
    if not 1 <= number <= total:
        raise SchoolError(f"{exercise.name} has hints 1 … {total}, not {number}")
    console.print(f"Hint {number} of {total}: {exercise.hints[number - 1]}")
    workspace.note_hint(exercise, number)
    return 0


def _restore(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    exercise = workspace.find(options.name)
    yours = workspace.restore(exercise)
    say(console, f"{exercise.file} has the reference {exercise.function} again; yours is kept in "
                  f"{yours.relative_to(workspace.root)}")
    return 0


def _prove(workspace: Workspace, console: Console, options: argparse.Namespace) -> int:
    chosen = [workspace.find(name) for name in options.names] or list(workspace.exercises.values())
    summary = RichTable("exercise", "reference", "stub", "mutants", "tests", "seconds",
                        box=SIMPLE_HEAD)
    surprises: list[VariantFinding] = []
    for findings in prove(workspace, chosen):
        surprises += [finding for finding in findings if finding.surprise]
        _summarize(summary, findings)
        if options.names:
            _print_findings(console, findings)
    console.print(summary)
    for finding in surprises:
        say(console, f"{finding.exercise.name}: {finding.variant} {finding.surprise}")
    if not surprises:
        say(console, f"{len(chosen)} exercises proven: each reference passes, each stub and each "
                      "mutant fails")
    return 1 if surprises else 0


def _print_findings(console: Console, findings: list[VariantFinding]) -> None:
    """Print a row for each variant of one exercise."""
    table = RichTable(findings[0].exercise.name, "fails in", "by", box=SIMPLE_HEAD)
    for finding in findings:
        failures = finding.outcome.failures if finding.outcome else ()
        test, error = (failures[0].test, failures[0].error) if failures else ("", "")
        table.add_row(finding.variant, test.split("::")[-1], error)
    console.print(table)


def _summarize(table: RichTable, findings: list[VariantFinding]) -> None:
    """Add a row for one exercise."""
    reference, stub = findings[:2]
    right = [finding for finding in findings if finding.variant in RIGHT]
    mutants = [finding for finding in findings[2:] if finding not in right]
    num_failing = sum(not mutant.surprise for mutant in mutants)
    outcome = reference.outcome
    table.add_row(reference.exercise.name,
                  "?" if any(finding.surprise for finding in right) else "passes",
                  "?" if stub.surprise else "fails", f"{num_failing} of {len(mutants)} fail",
                  str(outcome.num_passed) if outcome else "", f"{outcome.seconds:.1f}" if outcome
                  else "")
