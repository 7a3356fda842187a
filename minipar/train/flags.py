"""Command-line flags: one argparse argument for each field that `config.py` declares as a flag.

    --batch 8               a flag              --set model.rope=10000      any other option

`minipar distill` offers some of the same flags; it takes the others from the teacher.
"""

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..parallel.registry import strategies_with
from .checkpoints.models import read_config_to_resume
from .config import OPTIONS, TrainConfig
from .config_file import read_config, read_setting
from .option import OptionField, one_of

METAVARS = {int: "N", float: "X"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all flags of `minipar train`, in a group for each section of the configuration."""
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
        """Called by argparse for such a flag."""
        parser.error(f"{option_string} is no flag: say {self.const.flag}=VALUE, or give it in the "
                     "file of --config")


def add_flag(group: Any, field: OptionField, help: str = "") -> None:
    """Add one flag to a group of a parser; it is absent from the result when it is not given."""
    option, more = field.option, {}
    if field.kind is bool:
        more["action"] = argparse.BooleanOptionalAction
    else:
        more = {"type": field.kind, "metavar": option.metavar or METAVARS.get(field.kind)}
        if option.or_class:
            more["metavar"] = f"{{{','.join(field.table)},FILE.py:CLASS}}"
        elif field.table:
            more = {"choices": tuple(field.table)}
    text = help or f"{_help(field)}{_default(field)}"
    group.add_argument(f"--{field.key.replace('_', '-')}", dest=field.key,
                       default=argparse.SUPPRESS, help=text.replace("%", "%%"), **more)


def _help(field: OptionField) -> str:
    """The help of an option, with the strategies that take it, or the titles of its choices."""
    users = strategies_with(field.key)
    titles = [f"{name}: {entry.title}" for name, entry in field.table.items()
              if hasattr(entry, "title")] if isinstance(field.table, dict) else []
    return "; ".join([f"with {one_of(users)}: {field.option.help}" if users else field.option.help,
                      *titles])


def _default(field: OptionField) -> str:
    text = field.option.default_text
    if not text and field.kind is not bool and field.default not in (None, ""):
        text = f"{field.default:g}" if field.kind is float else str(field.default)
    return f" ({text})" if text else ""


def given(options: argparse.Namespace, keys: Collection[str] = tuple(OPTIONS)) -> dict[str, Any]:
    """The options that the command line gives, by the names of their flags."""
    return {key: value for key, value in vars(options).items() if key in keys}


def parse_config(options: argparse.Namespace) -> TrainConfig:
    """The configuration that a command line of `minipar train` means.  Raises UsageError.

    Flags win over the file of --config, that over the checkpoint of --resume.
    """
    values = read_config(options.config) if options.config else {}
    for text in options.set:
        values |= read_setting(text)
    values |= given(options)
    resume = values.get("resume")
    base = TrainConfig() if resume is None else read_config_to_resume(resume)
    return base.updated(**values)
