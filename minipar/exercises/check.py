"""Checking: is what the learner wrote right?

    examine      what there is to say before anything is run, or the outcome of the tests
    check        one exercise, explained: the failing test, the line, a known mistake
    check_all    everything that was ever written, run anew: the points that are really there

What is not started, still a stub, or the reference word for word, is not run at all.
"""

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..environment import minipar_command, num_cores
from . import surgery
from .judge import Failure, Outcome, judge
from .manifest import Exercise, Refusal
from .workbench import Workbench

SHOWN = 12          # lines of a message or of printed output
BY_CHANCE = 3       # statements of a body that two people write alike
NOTHING = "nothing is written yet"


@dataclass(frozen=True)
class Verdict:
    """What a check found: the outcome of the tests, or why they were not run."""

    outcome: Outcome | None
    why_not: str = ""
    written: ast.FunctionDef | None = None

    @property
    def passed(self) -> bool:
        """Whether the points are earned."""
        return self.outcome is not None and self.outcome.passed


def check(bench: Workbench, console: Console, exercise: Exercise, limit: float) -> bool:
    """Check one exercise and explain what came out; return whether it passed."""
    verdict = examine(bench, exercise, limit)
    outcome, name = verdict.outcome, exercise.name
    if outcome is None:
        say(console, f"✗ {name}: {verdict.why_not}")
        if verdict.why_not.startswith(NOTHING):
            print_task(console, exercise)
        return False
    if outcome.passed:
        say(console, f"✓ {name}: {exercise.points} points ({outcome.num_passed} tests in "
                     f"{outcome.seconds:.1f} s)\nTo compare it with the reference: "
                     + minipar_command(f"exercise restore {name}"))
        return True
    say(console, f"✗ {name}: 0 of {exercise.points} points ({outcome.num_passed} tests passed, "
                 f"{len(outcome.failures)} failed)")
    print_failure(bench, console, exercise, outcome.failures[0])
    for mutant in exercise.mutants:
        if surgery.same_body(verdict.written, _parse(mutant.body)):
            console.print(f"\nA known mistake: {mutant.why}")
    say(console, f"\nStuck?  {minipar_command(f'exercise hint {name}')}")
    return False


def check_all(bench: Workbench, console: Console, limit: float) -> bool:
    """Check all that is started or has passed before; return whether all of it passes."""
    chosen = [exercise for exercise in bench.exercises.values() if _is_written(bench, exercise)]
    table = Table("exercise", "points", "", box=SIMPLE_HEAD)
    reached = 0
    with ThreadPoolExecutor(num_cores()) as pool:
        verdicts: Iterator[Verdict] = pool.map(
            lambda exercise: examine(bench, exercise, limit, recorded=True), chosen)
        for exercise, verdict in zip(chosen, verdicts):
            points = exercise.points if verdict.passed else 0
            reached += points
            table.add_row(exercise.name, f"{points} of {exercise.points}", _in_short(verdict))
    total = sum(exercise.points for exercise in bench.exercises.values())
    console.print(table)
    say(console, f"{reached} of {total} points, counted anew.")
    return reached == sum(exercise.points for exercise in chosen)


def examine(bench: Workbench, exercise: Exercise, limit: float,
            recorded: bool = False) -> Verdict:
    """Check what the learner has written for an exercise, and note whether it passes.

    With `recorded` also what has passed before, of an exercise that was restored since.
    """
    started = bench.is_started(exercise)
    try:
        block = bench.written(exercise) if started or recorded else None
        if block is None:
            return Verdict(None, f"you have not started it: what stands in {bench.place(exercise)} "
                                 "is the reference.  To write your own: "
                                 + minipar_command(f"exercise start {exercise.name}"))
        written = surgery.parse_block(block)
        grafts = bench.grafts(exercise)
    except (Refusal, SyntaxError) as error:     # what stands there is no function any more
        return Verdict(None, str(error))
    if surgery.same_body(written, _parse(surgery.stub_body(exercise))):
        return Verdict(None, f"{NOTHING} in {bench.place(exercise)}")
    reference = surgery.parse_block(bench.reference(exercise.cuts[0]))
    if surgery.same_body(written, reference) and surgery.num_statements(written) > BY_CHANCE:
        return Verdict(None, f"what stands in {bench.place(exercise)} is the reference, word for "
                             "word: to begin again, "
                             + minipar_command(f"exercise restore {exercise.name}")
                             + f", then start {exercise.name}")
    if not started:
        grafts[exercise.file].append((exercise.function, block))
    lines = bench.lines(exercise) if started else (1, 0)
    outcome = judge(bench.root, exercise, {"yours": grafts}, lines, limit)["yours"]
    if outcome.passed or not started:
        bench.note_passed(exercise, block, outcome.passed)
    return Verdict(outcome, written=written)


def _is_written(bench: Workbench, exercise: Exercise) -> bool:
    try:
        return bench.written(exercise) is not None
    except Refusal:             # its file is no Python: to be said
        return True


def _in_short(verdict: Verdict) -> str:
    if verdict.outcome is None:
        return verdict.why_not
    if verdict.passed:
        return f"{verdict.outcome.num_passed} tests passed"
    failure = verdict.outcome.failures[0]
    return f"{failure.test.split('::')[-1]} {failure.error}".strip()


def _parse(body: str) -> ast.FunctionDef:
    return surgery.parse_block(surgery.as_block(body))


def say(console: Console, text: str) -> None:
    """Print lines as they are: names, places and commands are for copying."""
    console.print(text, soft_wrap=True)


def print_task(console: Console, exercise: Exercise) -> None:
    """The task, a paragraph at a time."""
    for paragraph in exercise.task.split("\n"):
        console.print(f"\n{paragraph}")


def print_failure(bench: Workbench, console: Console, exercise: Exercise,
                  failure: Failure) -> None:
    """The first failure in the learner's terms: which test, what it says, at which line."""
    message = failure.message.replace(f"{bench.root}/", "").strip().split("\n")
    explained = [i for i, line in enumerate(message) if i and line.startswith("assert ")]
    message = message[:explained[0] if explained else SHOWN]    # without pytest's retelling
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
        for line in printed.split("\n")[-SHOWN:]:
            say(console, f"    {line}")
