"""The manifest: what `exercises.toml` says of each exercise.

    [softmax_backward]                          the name
    title, lesson, points, task                 what to write, with shapes
    file, function                              what is cut: minipar/….py, Class.method
    hints                                       from gentle to almost the answer
    tests                                       pytest node ids, serial, a few seconds together
    [softmax_backward.mutants.sum_forgotten]    a wrong body, and why it is wrong
"""

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..environment import minipar_command

MANIFEST = "minipar/exercises.toml"
MIN_MUTANTS = 3


class Refusal(Exception):
    """What was asked cannot be done; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong body; `why` completes the sentence "it is wrong because"."""

    name: str
    why: str
    body: str


@dataclass(frozen=True)
class Exercise:
    """One function to write.  `file` is relative to the work tree, `function` is dotted."""

    name: str
    title: str
    lesson: int
    points: int
    file: str
    function: str
    task: str
    hints: tuple[str, ...]
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]


_FIELDS = {"title": str, "lesson": int, "points": int, "file": str, "function": str, "task": str,
           "hints": list, "tests": list, "mutants": dict}


def load(root: Path) -> dict[str, Exercise]:
    """The exercises of the work tree `root` by name, in the order of the manifest.

    Raises Refusal, naming the entry, where the manifest is not as this module's docstring says.
    """
    try:
        entries = tomllib.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refusal(f"there is no {MANIFEST} in {root}: exercises need a source checkout "
                      "(git clone, then pip install -e '.[dev]')") from None
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{MANIFEST} is no TOML: {error}") from None
    return {name: _exercise(name, entry) for name, entry in entries.items()}


def _exercise(name: str, entry: dict) -> Exercise:
    where = f"{MANIFEST}, [{name}]"
    for key in entry:
        if key not in _FIELDS:
            raise Refusal(f"{where}: unknown key {key!r}; there are {', '.join(_FIELDS)}")
    for key, kind in _FIELDS.items():
        if not isinstance(entry.get(key), kind) or entry[key] in ("", []):
            raise Refusal(f"{where}: {key} must be of type {kind.__name__} and not empty, not "
                          f"{entry.get(key)!r}")
    if len(entry["mutants"]) < MIN_MUTANTS:
        raise Refusal(f"{where}: {len(entry['mutants'])} mutants; at least {MIN_MUTANTS} are "
                      "needed to show that the tests tell right from wrong")
    for mutant, parts in entry["mutants"].items():
        if set(parts) != {"why", "body"} or mutant in ("reference", "stub"):
            raise Refusal(f"{where}: mutant {mutant} has {', '.join(parts)}; a mutant has why and "
                          "body, and is not called reference or stub")
    return Exercise(**{
        **entry, "name": name, "task": _flow(entry["task"]), "tests": tuple(entry["tests"]),
        "hints": tuple(_flow(hint) for hint in entry["hints"]),
        "mutants": tuple(Mutant(mutant, _flow(parts["why"]), parts["body"])
                         for mutant, parts in entry["mutants"].items())})


def _flow(text: str) -> str:
    """Each paragraph (they are set apart by empty lines) on a line of its own."""
    return "\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def find(exercises: dict[str, Exercise], name: str) -> Exercise:
    """An exercise by name.  Raises Refusal, with the closest name, if there is none."""
    if name not in exercises:
        close = difflib.get_close_matches(name, exercises, 1, cutoff=0.4)
        raise Refusal(f"there is no exercise {name!r}: "
                      + (f"did you mean {close[0]}?" if close
                         else f"{minipar_command('exercise list')} shows them"))
    return exercises[name]
