"""Read TOML files of exercises, milestones, puzzles and assignments, and check their entries."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

MIN_MUTANTS = 3


class SchoolError(Exception):
    """A request cannot be met; the message is one line that says why and what to do."""


def read_toml(file: Path) -> dict[str, Any]:
    """The content of a file.  Raises SchoolError if it is missing, or not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SchoolError(f"{file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SchoolError(f"{file} is not TOML: {error}") from None


def check_entry(where: str, entry: Mapping[str, Any], fields: Mapping[str, Any],
                optional: Mapping[str, Any] | None = None,
                may_be_empty: Collection[str] = ()) -> None:
    """Raise SchoolError unless an entry has these fields, with values of these types.

    If "mutants" is one of the fields, there must be at least MIN_MUTANTS of them.
    """
    known = {**fields, **(optional or {})}
    for key in entry:
        if key not in known:
            raise SchoolError(f"{where}: unknown key {key!r}; there are {', '.join(known)}")
    for key in [*fields, *(key for key in entry if key not in fields)]:
        value, kind = entry.get(key), known[key]
        if not isinstance(value, kind) or value in ("", []) and key not in may_be_empty:
            raise SchoolError(f"{where}: {key} must be of type {getattr(kind, '__name__', kind)} "
                              f"and not empty, not {value!r}")
    if len(entry.get("mutants", ())) < MIN_MUTANTS and "mutants" in fields:
        raise SchoolError(f"{where}: {len(entry['mutants'])} mutants; at least {MIN_MUTANTS} are "
                          "needed to show that the tests tell right from wrong")
