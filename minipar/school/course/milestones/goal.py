"""The milestones, the learner's functions for them, and the record of those that are reached."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ...exercises.entries import Exercise
from ...exercises.source import as_block, parse_block, same_body, stub_body
from ...exercises.workspace import KEPT, Workspace, write
from ...toml_files import SchoolError, read_toml

FILE = Path(__file__).parent / "milestones.toml"


@dataclass(frozen=True)
class Milestone:
    """A milestone: the exercises that it needs, and the options of its runs, by their names."""

    name: str
    title: str
    history: str
    exercises: tuple[str, ...]
    runs: dict[str, str]
    now: str


def milestones() -> dict[str, Milestone]:
    """The milestones by name, in course order."""
    return {name: Milestone(name, **{**entry, "exercises": tuple(entry["exercises"])})
            for name, entry in read_toml(FILE).items()}


def find(name: str) -> Milestone:
    """A milestone by name.  Raises SchoolError if there is none."""
    known = milestones()
    if name not in known:
        raise SchoolError(f"there is no milestone {name!r}: choose from {', '.join(known)}")
    return known[name]


def own_function(workspace: Workspace, exercise: Exercise) -> str | None:
    """The learner's function for an exercise; None if it is not written yet.

    Raises SchoolError if its file is not Python.
    """
    block = workspace.written(exercise)
    if block is None or same_body(parse_block(block), parse_block(as_block(stub_body(exercise)))):
        return None
    return block


def missing(workspace: Workspace, milestone: Milestone) -> list[str]:
    """The exercises that the learner has still to write."""
    return [name for name in milestone.exercises
            if own_function(workspace, workspace.find(name)) is None]


def reached(root: Path) -> dict[str, bool]:
    """For each milestone, whether it is reached with the functions that the learner has now."""
    try:
        workspace = Workspace(root)
    except SchoolError:
        return dict.fromkeys(milestones(), False)
    return {name: is_reached(workspace, milestone) for name, milestone in milestones().items()}


def is_reached(workspace: Workspace, milestone: Milestone) -> bool:
    """True if the milestone was reached with these functions."""
    path = record(workspace, milestone)
    try:
        return path.exists() and path.read_text().strip() == digest(workspace, milestone)
    except (SchoolError, SyntaxError):
        return False


def note_reached(workspace: Workspace, milestone: Milestone) -> None:
    """Record that the milestone is reached."""
    path = record(workspace, milestone)
    path.parent.mkdir(exist_ok=True)
    write(path, digest(workspace, milestone) + "\n")


def record(workspace: Workspace, milestone: Milestone) -> Path:
    """The file with the record of a milestone."""
    return workspace.root / KEPT / f"milestone.{milestone.name}"


def digest(workspace: Workspace, milestone: Milestone) -> str:
    """SHA-256 of the milestone and of the learner's functions; "" if one is missing."""
    blocks = [own_function(workspace, workspace.find(name)) for name in milestone.exercises]
    if None in blocks:
        return ""
    return hashlib.sha256(repr((milestone, blocks)).encode()).hexdigest()
