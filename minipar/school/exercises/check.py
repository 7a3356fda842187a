"""`exercise check`: test what the learner wrote, and explain the result.

    check        one exercise, and the commands that help further
    explain      the result of a check: the failing test, the line that raised, a known mistake
    check_all    test everything the learner has written again, and count the points
    examine      the outcome of one exercise's tests, or why they were not run

The tests are not run for an exercise that is not started, or is still a stub.  They are not run
either for a word-for-word copy of the reference, unless it is so short that chance may be the
reason.
"""

import ast
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ...environment import minipar_command, num_cores
from ..toml_files import SchoolError
from . import source
from .entries import Exercise
from .judge import TestFailure, VariantOutcome, judge
from .workspace import Workspace

MAX_LINES = 12      # of a message or of printed output
MAX_CHANCE = 3      # a body of so few statements may equal the reference by chance
NOTHING = "nothing is written yet"


@dataclass(frozen=True)
class Verdict:
    """The result of a check: the outcome of the tests, or why they were not run."""

    outcome: VariantOutcome | None
    why_not: str = ""
    written: ast.FunctionDef | None = None

    @property
    def passed(self) -> bool:
        """True if the points are earned."""
        return self.outcome is not None and self.outcome.passed


def check(workspace: Workspace, console: Console, exercise: Exercise, limit: float) -> bool:
    """Check one exercise and print the explanation; return whether it passed."""
    verdict = examine(workspace, exercise, limit)
    explain(workspace, console, exercise, verdict)
    if verdict.passed:
        say(console, "To compare it with the reference: "
                     + minipar_command(f"exercise restore {exercise.name}"))
    elif verdict.outcome is not None:
        say(console, f"\nStuck?  {minipar_command(f'exercise hint {exercise.name}')}")
    return verdict.passed


def explain(workspace: Workspace, console: Console, exercise: Exercise, verdict: Verdict) -> None:
    """Print the result of a check: points, the first failing test, a known mistake."""
    outcome, name = verdict.outcome, exercise.name
    if outcome is None:
        say(console, f"✗ {name}: {verdict.why_not}")
        if verdict.why_not.startswith(NOTHING):
            print_task(console, exercise)
        return
    if outcome.passed:
        say(console, f"✓ {name}: {exercise.points} points ({outcome.num_passed} tests in "
                     f"{outcome.seconds:.1f} s)")
        return
    say(console, f"✗ {name}: 0 of {exercise.points} points ({outcome.num_passed} tests passed, "
                 f"{len(outcome.failures)} failed)")
    print_failure(workspace, console, exercise, outcome.failures[0])
    for mutant in exercise.mutants:
        if source.same_body(verdict.written, _parse(mutant.body)):
            console.print(f"\nA known mistake: {mutant.why}")


def check_all(workspace: Workspace, console: Console, limit: float) -> bool:
    """Check every exercise that is started or has passed before; return whether all pass."""
    chosen = [exercise for exercise in workspace.exercises.values()
              if _is_written(workspace, exercise)]
    table = Table("exercise", "points", "", box=SIMPLE_HEAD)
    reached = 0
    with ThreadPoolExecutor(num_cores()) as pool:
        verdicts: Iterator[Verdict] = pool.map(
            lambda exercise: examine(workspace, exercise, limit, recorded=True), chosen)
        for exercise, verdict in zip(chosen, verdicts):
            points = exercise.points if verdict.passed else 0
            reached += points
            table.add_row(exercise.name, f"{points} of {exercise.points}", _in_short(verdict))
    total = sum(exercise.points for exercise in workspace.exercises.values())
    console.print(table)
    say(console, f"{reached} of {total} points, counted again.")
    return reached == sum(exercise.points for exercise in chosen)


def examine(workspace: Workspace, exercise: Exercise, limit: float,
            recorded: bool = False,
            judge: Callable[..., dict[str, VariantOutcome]] = judge) -> Verdict:
    """Check what the learner wrote for an exercise, and record whether it passes.

    With `recorded`, an exercise that passed and was restored is checked too.  `judge` runs the
    tests: that of judge.py, or a different one where no process can be started.
    """
    started = workspace.is_started(exercise)
    try:
        block = workspace.written(exercise) if started or recorded else None
        if block is None:
            return Verdict(None, f"you have not started it: {workspace.place(exercise)} has the "
                                 "reference.  To write your own: "
                                 + minipar_command(f"exercise start {exercise.name}"))
        written = source.parse_block(block)
        patches = workspace.patches([exercise], hidden_by=exercise)
    except (SchoolError, SyntaxError) as error:         # the file is not valid Python
        return Verdict(None, str(error))
    if source.same_body(written, _parse(source.stub_body(exercise))):
        return Verdict(None, f"{NOTHING} in {workspace.place(exercise)}")
    reference = source.parse_block(workspace.reference(exercise.targets[0]))
    if source.same_body(written, reference) and source.num_statements(written) > MAX_CHANCE:
        return Verdict(None, f"{workspace.place(exercise)} is the reference, word for word: to "
                             "begin again, "
                             + minipar_command(f"exercise restore {exercise.name}")
                             + f", then start {exercise.name}")
    lines = workspace.lines(exercise) if started else (1, 0)
    outcome = judge(workspace.root, exercise, {"yours": patches}, lines, limit)["yours"]
    if outcome.passed or not started:
        workspace.note_passed(exercise, block, outcome.passed)
    return Verdict(outcome, written=written)


def _is_written(workspace: Workspace, exercise: Exercise) -> bool:
    try:
        return workspace.written(exercise) is not None
    except SchoolError:           # the file is not valid Python: the check says so
        return True


def _in_short(verdict: Verdict) -> str:
    if verdict.outcome is None:
        return verdict.why_not
    if verdict.passed:
        return f"{verdict.outcome.num_passed} tests passed"
    failure = verdict.outcome.failures[0]
    return f"{failure.test.split('::')[-1]} {failure.error}".strip()


def _parse(body: str) -> ast.FunctionDef:
    return source.parse_block(source.as_block(body))


def say(console: Console, text: str) -> None:
    """Print text without wrapping, so that names, places and commands can be copied."""
    console.print(text, soft_wrap=True)


def print_task(console: Console, exercise: Exercise) -> None:
    """Print the task, one paragraph at a time."""
    for paragraph in exercise.task.split("\n"):
        console.print(f"\n{paragraph}")


def print_failure(workspace: Workspace, console: Console, exercise: Exercise,
                  failure: TestFailure) -> None:
    """Print a failure for the learner: the test, its message, and the line that raised."""
    message = failure.message.replace(f"{workspace.root}/", "").strip().split("\n")
    explained = [i for i, line in enumerate(message) if i and line.startswith("assert ")]
    message = message[:explained[0] if explained else MAX_LINES]    # without pytest's details
    if failure.error not in ("AssertionError", "CollectiveMismatch", "Deadlock", "EndlessLoop",
                             "Ended"):
        message[0] = f"{failure.error}: {message[0]}"
    if failure.test:
        say(console, f"\n{failure.test}")
    for line in (*message, *failure.notes):
        say(console, f"    {line}")
    if failure.line:
        say(console, f"at {exercise.file}:{failure.line[0]}\n    {failure.line[1]}")
    printed = failure.printed.strip()
    if printed:
        say(console, "it printed:")
        for line in printed.split("\n")[-MAX_LINES:]:
            say(console, f"    {line}")
