"""Graded tasks: variations of the exercises, as data, in a file of `assignments`.

The answer to an exercise is public.  So a graded task changes it, and each course draws the change:
the KEY of a course chooses one value for each parameter.  An entry:

    [reduce_scatter]                    the name; students write it in reduce_scatter.py
    title, minutes, task                what to write, with shapes, and how long it takes
    exercise                            the exercise that this task varies ("" for none)
    signature                           "reduce_scatter(comm, chunks)"; without comm: one process
    parameters.STEP = [1, -1]           drawn by KEY; known by this name to all the code below, and
                                        as $STEP to title and task
    inputs                              body of inputs(rng, p, **case): the arguments, for each rank
                                        a dict by name
    expected                            body of expected(inputs, p, **case): for each rank the
                                        results, a dict with "return", or the names of arguments
                                        that the function changes
    traffic                             optional body of traffic(inputs, p, **case): at most these
                                        "messages", "bytes", "rounds", "bytes_of_a_rank", "splits";
                                        "pairs": the (source, dest) that may talk.  Without
                                        "messages", each message counts HEADER bytes more
    measure                             optional body of measure(results, messages, p, **case): what
                                        a leaderboard ranks by, a dict of numbers; it raises
                                        ValueError for a result that breaks a rule
    tolerance                           relative; 1e-9 if missing; 0 means equal
    cases                               tables with ranks, points, hidden, and what inputs takes;
                                        no points where the result is an argument, or zeros
    solution                            body of the function; or a whole module, with helpers
    mutants.NAME                        `why` it is wrong, and a wrong `body`; or `replace`: pairs
                                        of words of the solution, and what stands there instead.
                                        The first three are the commonest, and have a question
                                        to `say` to the student

`expected` works on all ranks' inputs at once, in plain NumPy: an oracle that has nothing in common
with the solution.  `course prove` shows that the solution passes, and every mutant fails.
"""

import hashlib
import itertools
import random
import string
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...toml_files import SchoolError, check_entry, read_toml
from ..checker.compare import Measure, call_body

ASSIGNMENTS = Path(__file__).parents[1] / "assignments"
FIELDS = {"title": str, "minutes": int, "task": str, "exercise": str, "signature": str,
          "inputs": str, "expected": str, "cases": list, "solution": str, "mutants": dict}
OPTIONAL = {"parameters": dict, "traffic": str, "tolerance": float, "measure": str}


class Case(NamedTuple):
    """One test of a task: its number of ranks, and the sizes that `inputs` takes."""

    number: int
    ranks: int
    points: int
    is_hidden: bool
    sizes: dict[str, Any]

    def __str__(self) -> str:
        sizes = [f"{name} {value}" for name, value in self.sizes.items()]
        return ", ".join([f"{self.ranks} rank{'s' * (self.ranks > 1)}", *sizes])


class Wrong(NamedTuple):
    """A plausible wrong body; `why` completes "it is wrong because", `say` is for the student."""

    why: str
    body: str
    say: str = ""


@dataclass(frozen=True)
class Task:
    """A function to write, with the parameters of one course in place."""

    name: str
    title: str
    text: str
    minutes: int
    exercise: str
    signature: str
    parameters: dict[str, Any]
    cases: tuple[Case, ...]
    tolerance: float
    solution: str
    mutants: dict[str, Wrong]
    code: dict[str, str]                # inputs, expected, traffic, measure
    num_draws: int                      # combinations of parameters

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.signature.partition("(")[0]

    @property
    def is_serial(self) -> bool:
        """True if the function runs in one process, without a communicator."""
        return not self.signature.partition("(")[2].startswith("comm")

    @property
    def points(self) -> int:
        """Points of all cases."""
        return sum(case.points for case in self.cases)

    def arguments(self, case: Case, seed: int) -> list[dict[str, Any]]:
        """The arguments of each rank, from a seed."""
        rng = np.random.default_rng(seed)
        return self.call("inputs", rng, case.ranks, **case.sizes)

    def expected(self, arguments: list[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
        """The results of each rank."""
        return self.call("expected", arguments, case.ranks, **case.sizes)

    def traffic(self, arguments: list[dict[str, Any]], case: Case) -> dict[str, Any]:
        """The messages that are allowed; {} for any."""
        return self.call("traffic", arguments, case.ranks, **case.sizes) \
            if "traffic" in self.code else {}

    def call(self, name: str, *arguments: Any, **sizes: Any) -> Any:
        """Call one of the bodies of the entry, with the parameters as global names."""
        head = {"inputs": "rng, p", "expected": "inputs, p", "traffic": "inputs, p"}[name]
        return call_body(name, head, self.code[name], self.parameters, sizes, *arguments)

    def measure(self, case: Case) -> Measure | None:
        """What a capstone's results are measured by; None for other tasks."""
        code = self.code.get("measure")
        return None if code is None else Measure(code, self.parameters, case.sizes)

    def module(self, body: str) -> str:
        """A file with this body of the function, or a body that is a whole module already."""
        if f"def {self.function}(" in body:
            return self.constants() + body
        return (f"{self.constants()}def {self.signature}:\n"
                + textwrap.indent(body.strip("\n"), "    ") + "\n")

    def constants(self) -> str:
        """The head of a file: NumPy, and the course's parameters."""
        lines = [f"{name} = {value!r}\n" for name, value in self.parameters.items()]
        return "import numpy as np\n\n" + "".join(lines) + ("\n\n" if lines else "\n")


def load(file: Path, key: str) -> dict[str, Task]:
    """The tasks of an assignment's file, with the parameters that the key draws.

    Raises SchoolError, with the file and the entry, if an entry is not as described above.
    """
    return {name: make_task(f"{file}, [{name}]", name, entry,
                            draw(entry.get("parameters", {}), f"{key}/{name}"))
            for name, entry in read_toml(file).items()}


def variants(file: Path) -> Iterator[Task]:
    """Every task of an assignment's file with every combination of its parameters."""
    for name, entry in read_toml(file).items():
        for chosen in combinations(entry.get("parameters", {})):
            yield make_task(f"{file}, [{name}]", name, entry, chosen)


def make_task(where: str, name: str, entry: dict[str, Any], chosen: dict[str, Any]) -> Task:
    """The task of an entry, with these parameters.  Raises SchoolError if a field is no good."""
    check_entry(where, entry, FIELDS, OPTIONAL, may_be_empty=("exercise",))
    words = {parameter: str(value) for parameter, value in chosen.items()}
    try:
        title, text = (string.Template(entry[field]).substitute(words)
                       for field in ("title", "task"))
    except (KeyError, ValueError) as error:
        raise SchoolError(f"{where}: title and task may name parameters as $NAME, and a dollar is "
                          f"$$: {error}") from None
    cases = tuple(make_case(where, i, dict(case)) for i, case in enumerate(entry["cases"]))
    return Task(name, title, text.strip(), entry["minutes"], entry["exercise"], entry["signature"],
                chosen, cases, entry.get("tolerance", 1e-9), entry["solution"],
                {mutant: make_mutant(where, parts, entry["solution"])
                 for mutant, parts in entry["mutants"].items()},
                {part: entry[part] for part in ("inputs", "expected", "traffic", "measure")
                 if part in entry}, len(combinations(entry.get("parameters", {}))))


def make_mutant(where: str, parts: dict[str, Any], solution: str) -> Wrong:
    """The mutant of a table.  Raises SchoolError unless each replaced text occurs once."""
    body = parts.get("body", solution)
    for old, new in parts.get("replace", ()):
        if body.count(old) != 1:
            raise SchoolError(f"{where}: replace needs words that stand in the solution once, not "
                              f"{body.count(old)} times: {old!r}")
        body = body.replace(old, new)
    return Wrong(" ".join(parts["why"].split()), body, parts.get("say", ""))


def make_case(where: str, number: int, entry: dict[str, Any]) -> Case:
    """The case of a table of `ranks`, `points`, `hidden` and sizes.  Raises SchoolError."""
    ranks, points, hidden = (entry.pop("ranks", 1), entry.pop("points", 1),
                             entry.pop("hidden", False))
    if not 1 <= ranks <= 16 or points < 0:
        raise SchoolError(f"{where}: case {number} has {ranks} ranks and {points} points; there "
                          "may be 1 … 16 ranks, and points from 0 on")
    return Case(number, ranks, points, hidden, entry)


def draw(parameters: dict[str, list], key: str) -> dict[str, Any]:
    """One value of each parameter: the same for the same key, on every machine."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
    chooser = random.Random(seed)
    return {name: chooser.choice(values) for name, values in sorted(parameters.items())}


def combinations(parameters: dict[str, list]) -> list[dict[str, Any]]:
    """Every choice of one value for each parameter."""
    names = sorted(parameters)
    return [dict(zip(names, values)) for values in
            itertools.product(*(parameters[name] for name in names))]


def seed_of(secret: str, submission: str, task: str, case: int) -> int:
    """The seed of a case for one submission: no student knows it, an instructor can repeat it."""
    digest = hashlib.sha256(f"{secret}/{submission}/{task}/{case}".encode()).digest()
    return int.from_bytes(digest[:6])
