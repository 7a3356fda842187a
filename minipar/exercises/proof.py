"""The proof that an exercise's tests tell right from wrong.

    reference   passes          the tests ask for nothing that the library does not do
    solution    passes          if the reference needs what the exercise hides
    stub        fails           … by its own exception: the tests do reach the function
    mutant      fails           … by what it computes, not because it is no working Python

Each variant is judged alone, with the references of all other exercises.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .. import environment
from .judge import Outcome, judge
from .manifest import Exercise, Refusal, catalog_file
from .surgery import as_block, parse_block, stub_body
from .workbench import Workbench

RIGHT = ("reference", "solution")
NO_PROGRAM = ("NameError", "UnboundLocalError", "SyntaxError", "ImportError", "ModuleNotFoundError")
NO_RESULT = ("EndlessLoop", "Ended", "Skipped", "NotImplementedError")  # the last: what is hidden


@dataclass(frozen=True)
class Finding:
    """What came out for one variant; `surprise` says what should not be so, or is empty."""

    exercise: Exercise
    variant: str
    outcome: Outcome | None
    surprise: str


def prove(bench: Workbench, exercises: Sequence[Exercise]) -> Iterator[list[Finding]]:
    """The findings of each exercise, in order; as many at a time as there are cores."""
    with ThreadPoolExecutor(environment.num_cores()) as pool:
        yield from pool.map(lambda exercise: prove_one(bench, exercise), exercises)


def prove_one(bench: Workbench, exercise: Exercise) -> list[Finding]:
    """The findings of one exercise: reference, stub, each mutant.  Leaves the work tree alone."""
    blocks = {"reference": bench.reference(exercise.cuts[0]),
              "stub": as_block(stub_body(exercise))}
    if exercise.solution:
        blocks["solution"] = as_block(exercise.solution)
    blocks |= {mutant.name: as_block(mutant.body) for mutant in exercise.mutants}
    for name, block in blocks.items():
        try:
            parse_block(block)
        except SyntaxError as error:
            raise Refusal(f"{catalog_file(exercise.topic)}, [{exercise.name}.mutants.{name}]: line "
                          f"{error.lineno} of the body and its def: {error.msg}") from None
    variants = {}
    for name, block in blocks.items():
        others = bench.grafts(exercise, hide=name != "reference" or not exercise.solution)
        variants[name] = {**others, exercise.file: [*others[exercise.file],
                                                    (exercise.function, block)]}
    outcomes = judge(bench.root, exercise, variants, stop_at_first=True)
    return [Finding(exercise, name, outcomes.get(name), _surprise(name, outcomes.get(name)))
            for name in variants]


def _surprise(name: str, outcome: Outcome | None) -> str:
    if outcome is None:
        return "was not run: the variant before it ended the process"
    if name in RIGHT:
        return "" if outcome.passed else f"must pass, but {_first_failure(outcome)}"
    if not outcome.failures:
        return "passes, so the tests do not tell it from the reference"
    error = outcome.failures[0].error
    if name == "stub" and not outcome.failures[0].message.startswith("write this"):
        return f"must fail by its own exception, but {_first_failure(outcome)}"
    if name != "stub" and error in (*NO_PROGRAM, *NO_RESULT):
        return f"must fail by what it computes, but {_first_failure(outcome)}"
    return ""


def _first_failure(outcome: Outcome) -> str:
    if not outcome.failures:
        return "no test ran"
    failure = outcome.failures[0]
    message = failure.message.strip().split("\n")[0]
    return f"{failure.test or 'the run'}: {failure.error}: {message}"
