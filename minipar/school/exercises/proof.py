"""`exercise prove`: show that the tests of an exercise tell right from wrong.

    reference   passes          the tests ask for nothing that the library does not do
    solution    passes          needed if the reference calls a function that the exercise hides
    stub        fails           with its own exception: the tests do call the function
    mutant      fails           because of its result, not because it is broken Python

Each variant is tested alone, with the references of all other exercises.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ... import environment
from ..toml_files import SchoolError
from .entries import Exercise, catalog_file
from .judge import VariantOutcome, judge
from .source import as_block, parse_block, stub_body
from .workspace import Workspace

RIGHT = ("reference", "solution")
NO_PROGRAM = ("AttributeError", "NameError", "UnboundLocalError", "SyntaxError", "ImportError",
              "ModuleNotFoundError")
NO_RESULT = ("EndlessLoop", "Ended", "Skipped", "NotImplementedError")    # the last: hidden stubs


@dataclass(frozen=True)
class VariantFinding:
    """The result for one variant; `surprise` says what contradicts the table above, or is empty."""

    exercise: Exercise
    variant: str
    outcome: VariantOutcome | None
    surprise: str


def prove(workspace: Workspace, exercises: Sequence[Exercise]) -> Iterator[list[VariantFinding]]:
    """The findings of each exercise, in order; one exercise per core at a time."""
    with ThreadPoolExecutor(environment.num_cores()) as pool:
        yield from pool.map(lambda exercise: prove_one(workspace, exercise), exercises)


def prove_one(workspace: Workspace, exercise: Exercise) -> list[VariantFinding]:
    """The findings on one exercise: reference, stub, solution if any, each mutant.

    The work tree stays as it is.
    """
    blocks = {"reference": workspace.reference(exercise.targets[0]),
              "stub": as_block(stub_body(exercise))}
    if exercise.solution:
        blocks["solution"] = as_block(exercise.solution)
    blocks |= {mutant.name: as_block(mutant.body) for mutant in exercise.mutants}
    for name, block in blocks.items():
        try:
            parse_block(block)
        except SyntaxError as error:
            where = f"{catalog_file(exercise.topic)}, [{exercise.name}.mutants.{name}]"
            raise SchoolError(f"{where}: line {error.lineno} of the body and its def: "
                              f"{error.msg}") from None
    variants = {}
    for name, block in blocks.items():
        shows_all = name == "reference" and exercise.solution
        variants[name] = workspace.patches([], hidden_by=None if shows_all else exercise)
        variants[name].setdefault(exercise.file, []).append((exercise.function, block))
    outcomes = judge(workspace.root, exercise, variants, stop_at_first=True)
    return [VariantFinding(exercise, name, outcomes.get(name), _surprise(name, outcomes.get(name)))
            for name in variants]


def _surprise(name: str, outcome: VariantOutcome | None) -> str:
    if outcome is None:
        return "was not run: the variant before it ended the process"
    if name in RIGHT:
        return "" if outcome.passed else f"must pass, but {_first_failure(outcome)}"
    if not outcome.failures:
        return "passes, so the tests do not tell it from the reference"
    error = outcome.failures[0].error
    if name == "stub" and not outcome.failures[0].message.startswith("write this"):
        return f"must fail with its own exception, but {_first_failure(outcome)}"
    if name != "stub" and error in (*NO_PROGRAM, *NO_RESULT):
        return f"must fail because of its result, but {_first_failure(outcome)}"
    return ""


def _first_failure(outcome: VariantOutcome) -> str:
    if not outcome.failures:
        return "no test ran"
    failure = outcome.failures[0]
    message = failure.message.strip().split("\n")[0]
    return f"{failure.test or 'the run'}: {failure.error}: {message}"
