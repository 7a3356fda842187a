"""The configuration as tables: a TOML file for people, and the entry "config" of a checkpoint.

    [optimizer]                     as on the command line: name is --optimizer, lr is --lr
    name = "sgd"
    lr = 0.1

Values have the types of the fields.  An option that the tables leave out keeps its value.
"""

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..launcher import UsageError, errors_as_usage
from ..parallel.registry import strategies_with
from .config import OPTIONS, TrainConfig
from .option import OptionField, one_of

Tables = dict[str, dict[str, Any]]
FIELDS = {(field.section, field.name): field for field in OPTIONS.values()}
SECTIONS = {section: [name for s, name in FIELDS if s == section] for section, _ in FIELDS}
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false",
              Path: "a text"}


def read_config(path: Path) -> dict[str, Any]:
    """The options that a TOML file sets, by the names of their flags.  Raises UsageError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"--config {path}: there is no such file: minipar train --print-config "
                         f"> {path} writes one") from error
    except (OSError, ValueError) as error:          # from tomllib, or for bytes that are no text
        raise UsageError(f"--config {path} is no TOML file: {error}") from error
    with errors_as_usage(f"--config {path}: "):
        return from_tables(tables)


def read_setting(text: str) -> dict[str, Any]:
    """The option that --set gives: "model.rope=10000".  Raises UsageError."""
    name, has_value, value = text.partition("=")
    section, _, key = name.partition(".")
    if not has_value:
        raise UsageError(f"--set {text}: expected SECTION.NAME=VALUE")
    with errors_as_usage(f"--set {text}: "):
        return from_tables({section: {key: _typed(FIELDS.get((section, key)), value)}})


def _typed(field: OptionField | None, text: str) -> Any:
    """`text` as a TOML value, if the field takes a number or truth value; else `text` itself."""
    if field is None or field.kind in (str, Path):
        return text
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def from_tables(tables: Any) -> dict[str, Any]:
    """The options that `tables` set, by the names of their flags.  Raises ValueError."""
    found = {}
    for section, table in _entries(tables, "the configuration"):
        if section not in SECTIONS:
            raise ValueError(f"unknown section [{section}]: {_choices(section, SECTIONS)}")
        for name, value in _entries(table, f"[{section}]"):
            field = FIELDS.get((section, name))
            if field is None:
                raise ValueError(f"unknown key {name!r} in [{section}]: "
                                 f"{_choices(name, SECTIONS[section])}")
            found[field.key] = value_of(field, value)
    return found


def value_of(field: OptionField, value: Any) -> Any:
    """The `value` from a file, in the type of the field.  Raises ValueError for a wrong type."""
    if value is None and field.is_optional:
        return None
    allowed = (int, float) if field.kind is float else str if field.kind is Path else field.kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and field.kind is not bool):
        raise ValueError(f"{field.name} in [{field.section}] takes {TYPE_NAMES[field.kind]}, not "
                         f"{json.dumps(value, default=str)[:60]}")
    return value if isinstance(value, field.kind) else field.kind(value)


def to_tables(config: TrainConfig) -> Tables:
    """The tables that a checkpoint keeps; options that are None are left out."""
    tables: Tables = {}
    for field in OPTIONS.values():
        value = config.get(field.key)
        if field.option.saved and value is not None:
            tables.setdefault(field.section, {})[field.name] = value
    return tables


def help_of(field: OptionField) -> str:
    """The help of an option; before it the strategies that take the option, unless all do."""
    users = strategies_with(field.key)
    return f"with {one_of(users)}: {field.option.help}" if users else field.option.help


def to_toml(config: TrainConfig) -> str:
    """The configuration as a TOML file with every option; those that are None are comments."""
    lines = ["# minipar train --config FILE reads this; flags win over it."]
    for section, names in SECTIONS.items():
        lines += ["", f"[{section}]"]
        for name in names:
            field = FIELDS[section, name]
            value = config.get(field.key)
            entry = f"# {name} =" if value is None else f"{name} = {_toml_value(value)}"
            text = help_of(field)
            if value is None and field.default_text:
                text += f" ({field.default_text})"
            lines.append(f"{entry:<28}# {text}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """A value in TOML.  A text is written as in JSON, whose escapes TOML shares."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _entries(table: Any, name: str) -> list[tuple[str, Any]]:
    """The entries of a table.  Raises ValueError for another value."""
    if not isinstance(table, dict):
        raise ValueError(f"{name} is {json.dumps(table, default=str)[:60]}, not a table of names "
                         "and values")
    return list(table.items())


def _choices(name: str, known: Any) -> str:
    """Advice for an unknown name: the known name that is nearest to it, or all of them."""
    near = get_close_matches(name, known, 1) or [
        field.name for field in OPTIONS.values() if field.key == name and field.name in known]
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
