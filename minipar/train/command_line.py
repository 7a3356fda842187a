"""The command line: an argparse argument for each field that is declared as an option.

    config.TrainConfig          ─▶ add_arguments, parse_config      `minipar train`
    option.CommandOptions       ─▶ add_options, read_options        the other commands

`--batch 8` is a flag; `--set model.rope=10000` sets any option of `minipar train`, also one without
a flag.
"""

import argparse
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .check import check_beside, check_value
from .checkpoints.models import read_config_to_resume
from .config import OPTIONS, TrainConfig
from .config_file import help_of, read_config, read_setting
from .option import REQUIRED, CommandOptions, OptionField, declared
from .slow_network_options import MessagesConfig

METAVARS = {int: "N", float: "X"}
Declared = TypeVar("Declared", bound=CommandOptions)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all flags of `minipar train`, in a group for each section of the configuration.

    An option without a flag gets a hidden flag, which says how to give the option.
    """
    groups: dict[str, Any] = {}
    for field in OPTIONS.values():
        if field.section not in groups and field.option.is_flag:
            groups[field.section] = parser.add_argument_group(field.section)
        if field.option.is_flag:
            add_flag(groups[field.section], field)
        else:
            name = field.key.replace("_", "-")
            parser.add_argument(f"--{name}", *[f"--no-{name}"] * (field.kind is bool), nargs="?",
                                action=NoFlag, const=field, help=argparse.SUPPRESS,
                                default=argparse.SUPPRESS)
    files = parser.add_argument_group("configuration")
    files.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE",
                       help="any option of the file, such as model.rope=10000; may be repeated")
    files.add_argument("--config", type=Path, metavar="FILE",
                       help="read options from a TOML file; flags win over it")
    files.add_argument("--print-config", action="store_true",
                       help="write the configuration as TOML to stdout, and stop")


class NoFlag(argparse.Action):
    """Says how to give an option that has no flag."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        """Called by argparse if a user gives the hidden flag."""
        parser.error(f"{option_string} is no flag: say {self.const.flag}=VALUE, or give it in the "
                     "file of --config")


def add_flag(group: Any, field: OptionField, help: str = "") -> None:
    """Add one argument to a group of a parser.

    The parsed result has no entry for a flag that is not given, and None for a positional argument.
    """
    option, more = field.option, {}
    if field.kind is bool:
        more["action"] = argparse.BooleanOptionalAction if field.section else "store_true"
    else:
        more = {"type": field.kind, "metavar": option.metavar or METAVARS.get(field.kind)}
        if option.or_class:
            more["metavar"] = f"{{{','.join(field.table)},FILE.py:CLASS}}"
        elif field.table:
            more |= {"choices": tuple(field.table), "metavar": option.metavar}
        if isinstance(field.default, tuple):
            more["action"] = "append"
    if option.is_positional:
        names, more["nargs"] = [field.name], None if field.default is REQUIRED else "?"
    else:
        names = [*filter(None, [option.short]), f"--{field.key.replace('_', '-')}"]
        more |= {"dest": field.key, "required": field.default is REQUIRED}
    text = help or f"{_help(field)}{_default(field)}"
    default = None if option.is_positional else argparse.SUPPRESS
    group.add_argument(*names, default=default, help=text.replace("%", "%%"), **more)


def add_options(parser: argparse.ArgumentParser, kind: type[CommandOptions]) -> None:
    """Add the options of a command, and the options of `minipar train` that it takes."""
    groups: dict[str, Any] = {"": parser}

    def group(title: str) -> Any:
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        return groups[title]
    for title, keys in kind.of_training.items():
        for key in keys:
            add_flag(group(title), OPTIONS[key], OPTIONS[key].option.help if kind.inherits else "")
    for field in declared(kind).values():
        add_flag(group(field.option.group), field)


def read_options(kind: type[Declared], options: argparse.Namespace) -> Declared:
    """The checked options of a command, from its command line.  Raises UsageError."""
    fields = declared(kind)
    found = {key: tuple(value) if isinstance(value, list) else value
             for key, value in given(options, fields).items() if value is not None}
    training = given(options, [key for keys in kind.of_training.values() for key in keys])
    made = kind(**found, given=frozenset(found), training=training)
    for field, value in [*((fields[key], made.get(key)) for key in fields),
                         *((OPTIONS[key], value) for key, value in training.items())]:
        check_value(field, value)
    for field in fields.values():
        check_beside(field, made)
    return made


def _help(field: OptionField) -> str:
    """The help of an option, with the strategies that take it, or the titles of its choices."""
    titles = [f"{name}: {entry.title}" for name, entry in field.table.items()
              if hasattr(entry, "title")] if isinstance(field.table, dict) else []
    return "; ".join([help_of(field), *titles])


def _default(field: OptionField) -> str:
    text = field.default_text
    if not text and field.kind is not bool and field.default not in (None, "", (), REQUIRED):
        text = f"{field.default:g}" if field.kind is float else str(field.default)
    return f" ({text})" if text else ""


def given(options: argparse.Namespace, keys: Collection[str] = tuple(OPTIONS)) -> dict[str, Any]:
    """The options that the command line gives, by the names of their flags."""
    return {key: value for key, value in vars(options).items() if key in keys}


def parse_config(options: argparse.Namespace) -> TrainConfig:
    """The configuration that a command line of `minipar train` means.  Raises UsageError.

    Flags win over --set, --set over the file of --config, the file over the checkpoint of --resume.
    """
    values = read_config(options.config) if options.config else {}
    for text in options.set:
        values |= read_setting(text)
    values |= given(options)
    resume = values.get("resume")
    base = TrainConfig() if resume is None else read_config_to_resume(resume)
    if values.get("reduce_dtype", base.precision.reduce_dtype) != base.precision.reduce_dtype:
        base = replace(base, messages=MessagesConfig())     # the old ones are of another wire
    return base.updated(**values)
