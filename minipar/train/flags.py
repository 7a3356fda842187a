"""Command-line flags: one argparse argument for each field that `config.py` declares.

`minipar distill` offers some of the same flags; it takes the others from the teacher.
"""

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .checkpoints.models import read_config_to_resume
from .config import OPTIONS, TrainConfig
from .config_file import read_config
from .option import OptionField

METAVARS = {int: "N", float: "X"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all flags of `minipar train`, in a group for each section of the configuration."""
    groups: dict[str, Any] = {}
    for field in OPTIONS.values():
        if field.section not in groups:
            groups[field.section] = parser.add_argument_group(field.section)
        add_flag(groups[field.section], field)
    files = parser.add_argument_group("configuration")
    files.add_argument("--config", type=Path, metavar="FILE",
                       help="read options from a TOML file; flags win over it")
    files.add_argument("--print-config", action="store_true",
                       help="write the configuration as TOML to stdout, and stop")


def add_flag(group: Any, field: OptionField, help: str = "") -> None:
    """Add one flag to a group of a parser; it is absent from the result when it is not given."""
    option, more = field.option, {}
    if field.kind is bool:
        more["action"] = argparse.BooleanOptionalAction
    else:
        more = {"type": field.kind, "metavar": option.metavar or METAVARS.get(field.kind)}
        if option.choices:
            more = {"choices": option.choices}
    group.add_argument(field.flag, dest=field.key, default=argparse.SUPPRESS,
                       help=help or f"{option.help}{_default(field)}".replace("%", "%%"), **more)


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
    values = (read_config(options.config) if options.config else {}) | given(options)
    resume = values.get("resume")
    base = TrainConfig() if resume is None else read_config_to_resume(resume)
    return base.updated(**values)
