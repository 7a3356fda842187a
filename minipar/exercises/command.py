"""The command line of the exercises: list, start, check, hint, restore, prove."""

import argparse
import ast
import importlib.util
import sys
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from ..arguments import ArgumentParser
from ..environment import minipar_command
from . import surgery
from .judge import LIMIT, Failure, judge
from .manifest import Exercise, Refusal
from .proof import Finding, prove
from .workbench import Workbench

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 12          # lines of a message or of printed output


def main(argv: list[str], root: Path = ROOT) -> int:
    """Do what `argv` asks in the work tree `root`; return the exit status.

    0 is done, passed or proven; 1 not passed or not proven; 2 a request that cannot be met.
    """
    console = Console(highlight=False, markup=False)
    try:
        options = _parser().parse_args(argv)
        return options.run(Workbench(root.resolve()), console, options)
    except Refusal as refusal:
        print(f"minipar: {refusal}", file=sys.stderr)
        return 2
    except OSError as error:            # a tree that is not ours to write in
        print(f"minipar: {error.filename}: {error.strerror}: exercises are written in a work tree "
              "of your own (git clone)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


class _Parser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> None:
        raise Refusal(f"{message} ({self.prog} --help shows how)")


def _parser() -> _Parser:
    parser = _Parser(prog="minipar exercise", description="Write parts of minipar yourself.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, run, text in (
            ("list", _list, "what there is to write"),
            ("start", _start, "replace a function by a stub"),
            ("check", _check, "run an exercise's tests on what you wrote"),
            ("hint", _hint, "a nudge; hint NAME 2 a stronger one"),
            ("restore", _restore, "bring the reference back, and keep what you wrote"),
            ("prove", _prove, "show that the tests tell right from wrong")):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name in ("start", "check", "hint", "restore"):
            command.add_argument("name", metavar="NAME")
        if name == "check":
            command.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS",
                                 help="how long the tests may take (default %(default)g)")
        if name == "hint":
            command.add_argument("number", metavar="N", type=int, nargs="?", default=1)
        if name == "prove":
            command.add_argument("names", metavar="NAME", nargs="*")
    return parser


def _list(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    table = Table(Column("exercise", no_wrap=True, overflow="ignore"), "lesson", "points",
                  "what you write", "state", box=SIMPLE_HEAD)
    reached = total = 0
    for exercise in bench.exercises.values():
        state = bench.state(exercise)
        total += exercise.points
        reached += exercise.points if state == "passed" else 0
        table.add_row(exercise.name, f"{exercise.lesson:02}", str(exercise.points), exercise.title,
                      state)
    console.print(table)
    _say(console, f"{reached} of {total} points.  To begin: "
                  + minipar_command("exercise start NAME"))
    return 0


def _start(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    exercise = bench.find(options.name)
    bench.start(exercise)
    _say(console, f"{exercise.title} ({exercise.points} points)\n")
    _print_task(console, exercise)
    _say(console, f"Write it in {bench.place(exercise)}, then:\n"
                  f"  {minipar_command(f'exercise check {exercise.name}')}\n"
                  f"  {minipar_command(f'exercise hint {exercise.name}')}")
    return 0


def _hint(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    exercise = bench.find(options.name)
    number, total = options.number, len(exercise.hints)
    if not 1 <= number <= total:
        raise Refusal(f"{exercise.name} has hints 1 … {total}, not {number}")
    console.print(f"Hint {number} of {total}: {exercise.hints[number - 1]}")
    return 0


def _restore(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    exercise = bench.find(options.name)
    yours = bench.restore(exercise)
    _say(console, f"{exercise.file} has the reference {exercise.function} again; yours is kept in "
                  f"{yours.relative_to(bench.root)}")
    return 0


def _check(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    exercise = bench.find(options.name)
    if importlib.util.find_spec("pytest") is None:
        raise Refusal("checking needs pytest: make setup, or pip install -e '.[dev]'")
    if options.limit <= 0:
        raise Refusal(f"--limit takes a positive number of seconds, not {options.limit:g}")
    started = bench.is_started(exercise)
    try:
        written = surgery.parse_block(bench.block(exercise))
        grafts = bench.grafts(exercise)
    except Refusal as refusal:                  # what stands there is no function any more
        _say(console, f"✗ {exercise.name}: {refusal}")
        return 1
    if started and surgery.same_body(written, _parse(surgery.stub_body(exercise))):
        _say(console, f"✗ {exercise.name}: nothing is written yet in {bench.place(exercise)}\n")
        _print_task(console, exercise)
        return 1
    outcome = judge(bench.root, exercise, {"yours": grafts}, bench.lines(exercise),
                    options.limit)["yours"]
    tests = f"{outcome.num_passed} tests in {outcome.seconds:.1f} s"
    if outcome.passed and started:
        bench.keep_passed(exercise)
        _say(console, f"✓ {exercise.name}: {exercise.points} points ({tests})\nTo compare it with "
                      f"the reference: {minipar_command(f'exercise restore {exercise.name}')}")
    elif outcome.passed:
        _say(console, f"✓ {exercise.name} passes ({tests}), but it is the reference: to write your "
                      f"own, {minipar_command(f'exercise start {exercise.name}')}")
    else:
        _say(console, f"✗ {exercise.name}: 0 of {exercise.points} points ({outcome.num_passed} "
                      f"tests passed, {len(outcome.failures)} failed)")
        _print_failure(bench, console, exercise, outcome.failures[0])
        for mutant in exercise.mutants:
            if surgery.same_body(written, _parse(mutant.body)):
                console.print(f"\nA known mistake: {mutant.why}")
        _say(console, f"\nStuck?  {minipar_command(f'exercise hint {exercise.name}')}")
    return 0 if outcome.passed else 1


def _parse(body: str) -> ast.FunctionDef:
    return surgery.parse_block(surgery.as_block(body))


def _say(console: Console, text: str) -> None:
    """Print lines as they are: names, places and commands are for copying."""
    console.print(text, soft_wrap=True)


def _print_task(console: Console, exercise: Exercise) -> None:
    for paragraph in exercise.task.split("\n"):
        console.print(f"{paragraph}\n")


def _print_failure(bench: Workbench, console: Console, exercise: Exercise,
                   failure: Failure) -> None:
    """The first failure in the learner's terms: which test, what it says, at which line."""
    message = failure.message.replace(f"{bench.root}/", "").strip().split("\n")
    explained = [i for i, line in enumerate(message) if i and line.startswith("assert ")]
    message = message[:explained[0] if explained else SHOWN]    # without pytest's retelling
    if failure.error not in ("AssertionError", "Deadlock", "EndlessLoop", "Ended"):
        message[0] = f"{failure.error}: {message[0]}"
    if failure.test:
        _say(console, f"\n{failure.test}")
    for line in (*message, *failure.notes):
        _say(console, f"    {line}")
    if failure.line:
        _say(console, f"at {exercise.file}:{failure.line[0]}\n    {failure.line[1]}")
    printed = failure.printed.strip()
    if printed:
        _say(console, "it printed:")
        for line in printed.split("\n")[-SHOWN:]:
            _say(console, f"    {line}")


def _prove(bench: Workbench, console: Console, options: argparse.Namespace) -> int:
    chosen = [bench.find(name) for name in options.names] or list(bench.exercises.values())
    summary = Table("exercise", "reference", "stub", "mutants", "tests", "seconds", box=SIMPLE_HEAD)
    surprises: list[Finding] = []
    for findings in prove(bench, chosen):
        surprises += [finding for finding in findings if finding.surprise]
        _summarize(summary, findings)
        if options.names:
            _print_findings(console, findings)
    console.print(summary)
    for finding in surprises:
        _say(console, f"{finding.exercise.name}: {finding.variant} {finding.surprise}")
    if not surprises:
        _say(console, f"{len(chosen)} exercises proven: each reference passes, each stub and each "
                      "mutant fails")
    return 1 if surprises else 0


def _print_findings(console: Console, findings: list[Finding]) -> None:
    """A row for each variant of one exercise."""
    table = Table(findings[0].exercise.name, "fails in", "by", box=SIMPLE_HEAD)
    for finding in findings:
        failures = finding.outcome.failures if finding.outcome else ()
        test, error = (failures[0].test, failures[0].error) if failures else ("", "")
        table.add_row(finding.variant, test.split("::")[-1], error)
    console.print(table)


def _summarize(table: Table, findings: list[Finding]) -> None:
    """A row for one exercise."""
    reference, stub, *mutants = findings
    num_failing = sum(not mutant.surprise for mutant in mutants)
    outcome = reference.outcome
    table.add_row(reference.exercise.name, "?" if reference.surprise else "passes",
                  "?" if stub.surprise else "fails", f"{num_failing} of {len(mutants)} fail",
                  str(outcome.num_passed) if outcome else "", f"{outcome.seconds:.1f}" if outcome
                  else "")
