"""An assignment: tasks from one or several folders of `assignments`, with handout and rubric.

    assignments/collectives/    assignment.toml     number, title, summary, hours
                                tasks.toml          the graded tasks (`tasks.py`)
                                handout.md          for students: aims, background, questions;
                                                    packaging/selection.py tells how to mark them
                                rubric.md           for instructors: answers, and samples by grade

A task builds on the tasks that its text or its solution names.  If such a task was not chosen,
students get its text and its solution as a module, under the task's name.  They get nothing of the
other tasks that were not chosen.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...toml_files import SchoolError, check_entry, read_toml
from .tasks import Task, load

META = {"number": int, "title": str, "summary": str, "hours": int | float}


class AssignmentPart(NamedTuple):
    """The tasks and texts that an assignment takes from one folder.

    `share` is the minutes of these tasks, divided by the minutes of all tasks in the folder.
    """

    name: str
    meta: dict[str, Any]
    tasks: tuple[Task, ...]
    share: float
    handout: str
    rubric: str


class Assignment(NamedTuple):
    """An assignment with the parameters of a course; `supplied` are modules by name."""

    parts: tuple[AssignmentPart, ...]
    supplied: dict[str, str]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks."""
        return tuple(task for part in self.parts for task in part.tasks)

    def solutions_below(self, task: Task) -> dict[str, str]:
        """The solutions of those tasks that this one builds on, as modules by name.

        The assignment would supply them if it did not have these tasks itself.
        """
        own = {task.name: task for task in self.tasks}
        return {name: below.module(below.solution)
                for name, below in built_on([task], own).items() if name != task.name}

    @property
    def points(self) -> int:
        """Points of all tasks."""
        return sum(task.points for task in self.tasks)

    @property
    def title(self) -> str:
        """The titles of its parts."""
        return " · ".join(part.meta["title"] for part in self.parts)


def names_in(folder: Path) -> list[str]:
    """The assignments of a folder, in course order.  Raises SchoolError if it has none."""
    found = [path.parent for path in folder.glob("*/assignment.toml")]
    if not found:
        raise SchoolError(f"{folder} has no assignments: an assignment is a folder with "
                          "assignment.toml, tasks.toml, handout.md and rubric.md")
    return [path.name for path in sorted(found, key=lambda path: read_meta(path)["number"])]


def load_assignment(folder: Path, wanted: Sequence[str], key: str) -> Assignment:
    """The assignment with these tasks, given by name or as whole assignments, in course order.

    Raises SchoolError for a name that is neither.
    """
    parts, known = [], []
    rest, everything = list(wanted), {}
    for name in names_in(folder):
        tasks = load(folder / name / "tasks.toml", key)
        known += [name, *tasks]
        everything |= tasks
        chosen = tuple(task for task in tasks.values() if name in wanted or task.name in wanted)
        rest = [word for word in rest if word != name and word not in tasks]
        if chosen:
            share = minutes(chosen) / minutes(tasks.values())
            parts.append(AssignmentPart(name, read_meta(folder / name), chosen, share,
                                        *((folder / name / file).read_text(encoding="utf-8")
                                          for file in ("handout.md", "rubric.md"))))
    if rest or not parts:
        asked = ", ".join(map(repr, rest)) or "given"
        raise SchoolError(f"there is no assignment or task {asked}: "
                          f"choose from {', '.join(known)}")
    own = [task for part in parts for task in part.tasks]
    supplied = {name: f'"""{task.title}\n\n{task.text}\n"""\n\n{task.module(task.solution)}'
                for name, task in built_on(own, everything).items() if task not in own}
    return Assignment(tuple(parts), supplied)


def built_on(tasks: Collection[Task], known: Mapping[str, Task]) -> dict[str, Task]:
    """The known tasks that these build on, directly or through others, in course order."""
    found: set[str] = set()
    for task in tasks:
        words = {*re.findall(r"\w+", f"{task.text} {task.solution}")} - {task.name}
        found |= words & known.keys()
    names = [name for name in known if name in found]
    if found <= {task.name for task in tasks}:
        return {name: known[name] for name in names}
    return built_on([*tasks, *(known[name] for name in names)], known)


def minutes(tasks: Iterable[Task]) -> int:
    """The minutes that the tasks take together."""
    return sum(task.minutes for task in tasks)


def read_meta(folder: Path) -> dict[str, Any]:
    """The head of an assignment.  Raises SchoolError if it lacks something."""
    file = folder / "assignment.toml"
    meta = read_toml(file)
    check_entry(str(file), meta, META)
    return meta
