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
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...environment import minipar_command
from ..toml_files import SchoolError, check_entry, read_toml

CATALOG = "minipar/school/exercises/catalog"
TESTS = "tests/school/exercises"
# In course order; catalog/ has one file for each.
TOPICS = ("collectives", "costs", "autograd", "optimizers", "data parallelism", "sharding",
          "pipelines", "tensor parallelism", "context parallelism", "experts", "meshes", "gspmd",
          "memory", "precision", "pruning", "quantization", "distillation", "inference", "planning")
# core: an idea of the lesson, which everyone should have written once.  plumbing: what a real
# system needs around the idea; it can be left out.
EXERCISE_KINDS = ("core", "plumbing")


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

    Raises SchoolError, with the file and the entry, if an entry is not as described above.
    """
    need_checkout(root, CATALOG)
    files = {catalog_file(topic): topic for topic in TOPICS}
    for path in sorted((root / CATALOG).glob("*.toml")):
        if f"{CATALOG}/{path.name}" not in files:
            names = ", ".join(name.rpartition("/")[2] for name in files)
            raise SchoolError(f"{CATALOG}/{path.name}: no topic has this file; the files are "
                              + names)
    exercises: dict[str, Exercise] = {}
    for file, topic in files.items():
        for name, entry in read_toml(root / file).items():
            if name in exercises:
                first = catalog_file(exercises[name].topic)
                raise SchoolError(f"{file}, [{name}]: {first} has an exercise of this name; "
                                  "choose another")
            _check(f"{file}, [{name}]", entry, exercises)
            exercises[name] = _exercise(name, topic, entry)
    return exercises


def need_checkout(root: Path, folder: str) -> None:
    """Raise SchoolError if a folder of the work tree is not there, as after `pip install`."""
    if not (root / folder).is_dir():
        raise SchoolError(f"there is no {folder} in {root}: exercises need a source checkout "
                          "(git clone, then pip install -e '.[dev]')")


def _check(where: str, entry: dict, before: Container[str]) -> None:
    """Raise SchoolError unless the entry has the right keys, with values that make sense."""
    check_entry(where, entry, _FIELDS, _OPTIONAL, may_be_empty=("needs",))
    if entry["kind"] not in EXERCISE_KINDS:
        raise SchoolError(f"{where}: kind must be one of {', '.join(EXERCISE_KINDS)}, "
                          f"not {entry['kind']!r}")
    for key in ("points", "minutes"):
        if entry[key] < 1:
            raise SchoolError(f"{where}: {key} must be at least 1, not {entry[key]}")
    for other in entry["needs"]:
        if other not in before:
            raise SchoolError(f"{where}: needs {other!r}, but no exercise above has that name")
    for target in entry.get("hidden", ()):
        if target.count("::") != 1:
            raise SchoolError(f"{where}: hidden must be like minipar/….py::function, "
                              f"not {target!r}")
    for mutant, parts in entry["mutants"].items():
        if set(parts) != {"why", "body"} or mutant in ("reference", "solution", "stub"):
            raise SchoolError(f"{where}: mutant {mutant} has {', '.join(parts)}; a mutant has "
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
    """An exercise by name.  Raises SchoolError, with the closest name, if there is none."""
    if name not in exercises:
        close = difflib.get_close_matches(name, exercises, 1, cutoff=0.4)
        raise SchoolError(f"there is no exercise {name!r}: "
                          + (f"did you mean {close[0]}?" if close
                             else f"{minipar_command('exercise list')} shows them"))
    return exercises[name]
