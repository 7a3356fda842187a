"""The catalog: what `catalog/TOPIC.toml` says of each exercise.

    [softmax_backward]                          the name
    title, lesson, points, task                 what to write, with shapes
    kind, minutes, needs                        for choosing: one of KINDS, how long it takes, names
                                                of exercises to do before
    file, function                              what is cut: minipar/….py, Class.method
    hints                                       from gentle to almost the answer
    tests                                       pytest node ids, serial, a few seconds together
    [softmax_backward.mutants.sum_forgotten]    a wrong body, and why it is wrong

Where another function would be the answer it is hidden, that is, cut as well:

    hidden                                      "minipar/….py::function", perhaps several
    solution                                    a body without them, if the reference needs them
"""

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..environment import minipar_command

CATALOG = "minipar/exercises/catalog"
MIN_MUTANTS = 3
# In course order; catalog/ has one file for each.
TOPICS = ("collectives", "costs", "autograd", "optimizers", "data parallelism", "sharding",
          "pipelines", "tensor parallelism", "meshes", "memory", "precision", "pruning",
          "quantization", "distillation")
# core: an idea of the lesson, which everyone should have written once.  plumbing: what a real
# system needs around it; who leaves it out misses no idea.
KINDS = ("core", "plumbing")


class Refusal(Exception):
    """What was asked cannot be done; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong body; `why` completes the sentence "it is wrong because"."""

    name: str
    why: str
    body: str


class Cut(NamedTuple):
    """A function that is cut out: `file` is relative to the work tree, `function` is dotted."""

    file: str
    function: str


@dataclass(frozen=True)
class Exercise:
    """One function to write, and others that are hidden as long as it is being written."""

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
    hidden: tuple[Cut, ...] = ()
    solution: str = ""

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """All functions that are cut, the one to write first."""
        return Cut(self.file, self.function), *self.hidden


_FIELDS = {"title": str, "lesson": int, "points": int, "kind": str, "minutes": int, "needs": list,
           "file": str, "function": str, "task": str, "hints": list, "tests": list,
           "mutants": dict}
_OPTIONAL = {"hidden": list, "solution": str}


def catalog_file(topic: str) -> str:
    """The file with the exercises on a topic, relative to the work tree."""
    return f"{CATALOG}/{topic.replace(' ', '_')}.toml"


def load(root: Path) -> dict[str, Exercise]:
    """The exercises of the work tree `root` by name: topic by topic, each in course order.

    Raises Refusal, naming the file and the entry, if the catalog breaks this module's rules.
    """
    files = {catalog_file(topic): topic for topic in TOPICS}
    for path in sorted((root / CATALOG).glob("*.toml")):
        if f"{CATALOG}/{path.name}" not in files:
            raise Refusal(f"{CATALOG}/{path.name}: no topic has this file; the files are "
                          f"{', '.join(name.rpartition('/')[2] for name in files)}")
    exercises: dict[str, Exercise] = {}
    for file, topic in files.items():
        for name, entry in _entries(root, file).items():
            if name in exercises:
                raise Refusal(f"{file}, [{name}]: {catalog_file(exercises[name].topic)} has an "
                              "exercise of this name; choose another")
            exercises[name] = _exercise(f"{file}, [{name}]", name, topic, entry, exercises)
    return exercises


def _entries(root: Path, file: str) -> dict[str, dict]:
    try:
        return tomllib.loads((root / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refusal(f"there is no {file} in {root}: exercises need a source checkout "
                      "(git clone, then pip install -e '.[dev]')") from None
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{file} is no TOML: {error}") from None


def _exercise(where: str, name: str, topic: str, entry: dict,
              before: dict[str, Exercise]) -> Exercise:
    fields = _FIELDS | _OPTIONAL
    for key in entry:
        if key not in fields:
            raise Refusal(f"{where}: unknown key {key!r}; there are {', '.join(fields)}")
    for key, kind in fields.items():
        if key in _OPTIONAL and key not in entry:
            continue
        if not isinstance(entry.get(key), kind) or entry[key] in ("", []) and key != "needs":
            raise Refusal(f"{where}: {key} must be of type {kind.__name__} and not empty, not "
                          f"{entry.get(key)!r}")
    if entry["kind"] not in KINDS:
        raise Refusal(f"{where}: kind must be one of {', '.join(KINDS)}, not {entry['kind']!r}")
    for key in ("points", "minutes"):
        if entry[key] < 1:
            raise Refusal(f"{where}: {key} must be at least 1, not {entry[key]}")
    for other in entry["needs"]:
        if other not in before:
            raise Refusal(f"{where}: needs {other!r}, which is no exercise above it")
    for cut in entry.get("hidden", ()):
        if cut.count("::") != 1:
            raise Refusal(f"{where}: hidden must be like minipar/….py::function, not {cut!r}")
    if len(entry["mutants"]) < MIN_MUTANTS:
        raise Refusal(f"{where}: {len(entry['mutants'])} mutants; at least {MIN_MUTANTS} are "
                      "needed to show that the tests tell right from wrong")
    for mutant, parts in entry["mutants"].items():
        if set(parts) != {"why", "body"} or mutant in ("reference", "solution", "stub"):
            raise Refusal(f"{where}: mutant {mutant} has {', '.join(parts)}; a mutant has why and "
                          "body, and is not called reference, solution or stub")
    return Exercise(**{
        **entry, "name": name, "topic": topic, "task": _flow(entry["task"]),
        "tests": tuple(entry["tests"]),
        "hints": tuple(_flow(hint) for hint in entry["hints"]), "needs": tuple(entry["needs"]),
        "hidden": tuple(Cut(*cut.split("::")) for cut in entry.get("hidden", ())),
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
