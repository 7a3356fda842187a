"""Puzzles: broken training programs, each with one mistake that real systems had.

The programs are lessons/puzzles/NAME.py; puzzles.toml has their hints, explanations and mends.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..toml_files import SchoolError, check_entry, read_toml

CATALOG = Path(__file__).with_name("puzzles.toml")
TOOLS = ("compare", "types", "doctor")
_FIELDS = {"title": str, "tool": str, "ranks": int, "hint": str, "explanation": str, "mend": list}
_OPTIONAL = {"right": str, "settings": list}


class Puzzle(NamedTuple):
    """An entry of puzzles.toml, which says what the fields are."""

    name: str
    title: str
    tool: str
    ranks: int
    hint: str
    explanation: str
    mend: list[list[str]]
    right: str = ""
    settings: Sequence[str] = ()

    def mended(self, program: str) -> str:
        """The program with its mistake mended.  Raises SchoolError if the mistake is not in it."""
        for wrong, right in self.mend:
            if program.count(wrong) != 1:
                raise SchoolError(f"{self.name}: {wrong!r} must stand once in the program")
            program = program.replace(wrong, right)
        return program


def load() -> dict[str, Puzzle]:
    """All puzzles by name, in order.  Raises SchoolError for an entry that is not as it should."""
    puzzles = {}
    for name, entry in read_toml(CATALOG).items():
        check_entry(f"{CATALOG.name}, [{name}]", entry, _FIELDS, _OPTIONAL)
        if entry["tool"] not in TOOLS or ("right" in entry) != (entry["tool"] == "compare"):
            raise SchoolError(f"{CATALOG.name}, [{name}]: tool is one of {', '.join(TOOLS)}; "
                              "compare has a mesh, `right`, the others none")
        puzzles[name] = Puzzle(name, **entry)
    return puzzles
