"""The catalog of exercises: an entry in `catalog/TOPIC.toml` for each.

    [softmax_backward]                          the name
    title, lesson, points, task                 what to write, with shapes
    kind, minutes, needs                        core or plumbing; minutes; exercises to do first
    file, function                              what to replace: minipar/….py, Class.method
    hints                                       from gentle to almost the answer
    tests                                       pytest node ids, serial, a few seconds together
    [softmax_backward.mutants.sum_forgotten]    a wrong `body`, and `why` it is wrong

If another function of minipar would give the answer away, the exercise hides it too:

    hidden                                      ["minipar/….py::function", …]
    solution                                    a body without them, if the reference calls them
"""

import difflib
import tomllib
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...environment import minipar_command

CATALOG = "minipar/school/exercises/catalog"
MIN_MUTANTS = 3
# In course order; catalog/ has one file for each.
TOPICS = ("collectives", "costs", "autograd", "optimizers", "data parallelism", "sharding",
          "pipelines", "tensor parallelism", "context parallelism", "experts", "meshes", "gspmd",
          "memory", "precision", "pruning", "quantization", "distillation", "inference")
# core: an idea of the lesson, which everyone should have written once.  plumbing: what a real
# system needs around the idea; it can be left out.
EXERCISE_KINDS = ("core", "plumbing")


class ExerciseError(Exception):
    """A request cannot be met; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong body; `why` completes the sentence "it is wrong because"."""

    name: str
    why: str
    body: str


class Target(NamedTuple):
    """A function to replace: `file` is relative to the work tree, `function` is dotted."""

    file: str
    function: str


@dataclass(frozen=True)
class Exercise:
    """One function to write, and the functions that stay hidden until it is restored."""

    name: str
    title: str
    lesson: int
    points: int
    topic: str
    kind: str
    minutes: int
    needs: tuple[str, ...]
    file: str
    function: str
    task: str
    hints: tuple[str, ...]
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    hidden: tuple[Target, ...] = ()
    solution: str = ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """All functions to replace: the one to write, then the hidden ones."""
        return Target(self.file, self.function), *self.hidden


_FIELDS = {"title": str, "lesson": int, "points": int, "kind": str, "minutes": int, "needs": list,
           "file": str, "function": str, "task": str, "hints": list, "tests": list,
           "mutants": dict}
_OPTIONAL = {"hidden": list, "solution": str}


def catalog_file(topic: str) -> str:
    """The file with the exercises on a topic, relative to the work tree."""
    return f"{CATALOG}/{topic.replace(' ', '_')}.toml"


def load(root: Path) -> dict[str, Exercise]:
    """The exercises of the work tree `root` by name: topic by topic, each in course order.

    Raises ExerciseError, with the file and the entry, if an entry is not as described above.
    """
    files = {catalog_file(topic): topic for topic in TOPICS}
    for path in sorted((root / CATALOG).glob("*.toml")):
        if f"{CATALOG}/{path.name}" not in files:
            names = ", ".join(name.rpartition("/")[2] for name in files)
            raise ExerciseError(f"{CATALOG}/{path.name}: no topic has this file; the files are "
                                + names)
    exercises: dict[str, Exercise] = {}
    for file, topic in files.items():
        for name, entry in _entries(root, file).items():
            if name in exercises:
                first = catalog_file(exercises[name].topic)
                raise ExerciseError(f"{file}, [{name}]: {first} has an exercise of this name; "
                                    "choose another")
            _check(f"{file}, [{name}]", entry, exercises)
            exercises[name] = _exercise(name, topic, entry)
    return exercises


def _entries(root: Path, file: str) -> dict[str, dict]:
    try:
        return tomllib.loads((root / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExerciseError(f"there is no {file} in {root}: exercises need a source checkout "
                            "(git clone, then pip install -e '.[dev]')") from None
    except tomllib.TOMLDecodeError as error:
        raise ExerciseError(f"{file} is not TOML: {error}") from None


def _check(where: str, entry: dict, before: Container[str]) -> None:
    """Raise ExerciseError unless the entry has the right keys, with values that make sense."""
    fields = _FIELDS | _OPTIONAL
    for key in entry:
        if key not in fields:
            raise ExerciseError(f"{where}: unknown key {key!r}; there are {', '.join(fields)}")
    for key, kind in fields.items():
        if key in _OPTIONAL and key not in entry:
            continue
        if not isinstance(entry.get(key), kind) or entry[key] in ("", []) and key != "needs":
            raise ExerciseError(f"{where}: {key} must be of type {kind.__name__} and not empty, "
                                f"not {entry.get(key)!r}")
    if entry["kind"] not in EXERCISE_KINDS:
        raise ExerciseError(f"{where}: kind must be one of {', '.join(EXERCISE_KINDS)}, "
                            f"not {entry['kind']!r}")
    for key in ("points", "minutes"):
        if entry[key] < 1:
            raise ExerciseError(f"{where}: {key} must be at least 1, not {entry[key]}")
    for other in entry["needs"]:
        if other not in before:
            raise ExerciseError(f"{where}: needs {other!r}, but no exercise above has that name")
    for target in entry.get("hidden", ()):
        if target.count("::") != 1:
            raise ExerciseError(f"{where}: hidden must be like minipar/….py::function, "
                                f"not {target!r}")
    if len(entry["mutants"]) < MIN_MUTANTS:
        raise ExerciseError(f"{where}: {len(entry['mutants'])} mutants; at least {MIN_MUTANTS} "
                            "are needed to show that the tests tell right from wrong")
    for mutant, parts in entry["mutants"].items():
        if set(parts) != {"why", "body"} or mutant in ("reference", "solution", "stub"):
            raise ExerciseError(f"{where}: mutant {mutant} has {', '.join(parts)}; a mutant has "
                                "why and body, and is not called reference, solution or stub")


def _exercise(name: str, topic: str, entry: dict) -> Exercise:
    return Exercise(**{
        **entry, "name": name, "topic": topic, "task": _flow(entry["task"]),
        "tests": tuple(entry["tests"]),
        "hints": tuple(_flow(hint) for hint in entry["hints"]), "needs": tuple(entry["needs"]),
        "hidden": tuple(Target(*target.split("::")) for target in entry.get("hidden", ())),
        "mutants": tuple(Mutant(mutant, _flow(parts["why"]), parts["body"])
                         for mutant, parts in entry["mutants"].items())})


def _flow(text: str) -> str:
    """The text with each paragraph on one line; empty lines separate paragraphs."""
    return "\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def find(exercises: dict[str, Exercise], name: str) -> Exercise:
    """An exercise by name.  Raises ExerciseError, with the closest name, if there is none."""
    if name not in exercises:
        close = difflib.get_close_matches(name, exercises, 1, cutoff=0.4)
        raise ExerciseError(f"there is no exercise {name!r}: "
                            + (f"did you mean {close[0]}?" if close
                               else f"{minipar_command('exercise list')} shows them"))
    return exercises[name]
