"""How far a learner is with the hints of an exercise: a number, in .exercises/NAME.hint."""

from contextlib import suppress
from pathlib import Path

from .entries import Exercise
from .workspace import KEPT, Workspace, write


def last_shown(workspace: Workspace, exercise: Exercise) -> int:
    """The number of the last hint that was shown; 0 if none was, or after `restore`."""
    try:
        return int(record(workspace, exercise).read_text())
    except (OSError, ValueError):
        return 0


def note_shown(workspace: Workspace, exercise: Exercise, number: int) -> None:
    """Record that hint `number` was shown; nothing in a tree that may not be written."""
    with suppress(OSError):
        record(workspace, exercise).parent.mkdir(exist_ok=True)
        write(record(workspace, exercise), f"{number}\n")


def record(workspace: Workspace, exercise: Exercise) -> Path:
    """The file with the number; without it, the next hint is the first."""
    return workspace.root / KEPT / f"{exercise.name}.hint"
