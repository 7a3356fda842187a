"""The description that a field of a configuration carries for flags, files and checkpoints.

    lr: float | None = option(None, …, least=0)             in `config.py`, or in the options of
                                                            a command, a CommandOptions
        OptionField("optimizer", "lr", float, …).flag       "--lr"

`choices` may be the address of a table, such as "parallel.registry:STRATEGIES".  The table is
imported only when its names are needed, so `config.py` imports none of what it names.
"""

from collections.abc import Collection, Iterable
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args


class Beside(NamedTuple):
    """Another option that an option needs or excludes: the name of its flag, and a value.

    For "mesh" the value is an axis, which must have several ranks.  Another needed option may have
    any value, and `value` is the example in the message.  An excluded option must not have
    `value`; if `value` is "", it must not be given at all.  `why` ends the sentence that the flag
    begins: "goes with a pipeline".
    """

    key: str
    value: str
    why: str


REQUIRED: Any = MISSING         # the default of an option that must be given


@dataclass(frozen=True)
class Option:
    """The description of a field for the command line, files and checkpoints."""

    help: str
    flag_name: str = ""                     # without dashes; "": the name of the field
    is_flag: bool = True                    # False: only in a file, or by --set
    choices: tuple[str, ...] | str = ()     # names, or the address of a table of them
    or_class: bool = False                  # or FILE.py:CLASS
    needs: Beside | None = None             # the option that must be given with this one
    without: tuple[Beside, ...] = ()        # the options that must not
    least: float | None = None              # the least value of a number, which must be finite
    most: int | None = None                 # the largest value of a whole number
    metavar: str | None = None
    default_text: str = ""                  # the default in words, where its value says nothing
    default_in: str = ""                    # the address of a table whose entries have the default
    saved: bool = True                      # False: a checkpoint does not keep it
    short: str = ""                         # a short flag, such as "-p"
    is_positional: bool = False             # a word without a flag
    group: str = ""                         # title of its group in --help


def option(default: Any, help: str, **more: Any) -> Any:
    """A field of a configuration; `more` are fields of Option.

    With the default REQUIRED it must be given.
    """
    return field(default=default, metadata={"option": Option(help, **more)})


setting = partial(option, is_flag=False)        # only in a file, or by --set


class OptionField(NamedTuple):
    """An option and the field that declares it: `name` in `section`, of type `kind`.

    The field may also be None if `is_optional`.  Options of commands other than `train` have no
    section.
    """

    section: str
    name: str
    kind: type
    is_optional: bool
    default: Any
    option: Option

    @property
    def key(self) -> str:
        """The name of its flag as a name in Python."""
        return self.option.flag_name or self.name

    @property
    def flag(self) -> str:
        """What a user writes: "--batch", "--set model.kv_heads", or "CHECKPOINT"."""
        if self.option.is_positional:
            return self.option.metavar or self.name.upper()
        return f"--{self.key.replace('_', '-')}" if self.option.is_flag else \
            f"--set {self.section}.{self.name}"

    @property
    def table(self) -> Collection[str]:
        """The names to choose from; empty if any value will do."""
        choices = self.option.choices
        return table_at(choices) if isinstance(choices, str) else choices

    @property
    def default_text(self) -> str:
        """The default in words; with `default_in`, of each entry: "adam: 0.003; sgd: 0.1"."""
        if not self.option.default_in:
            return self.option.default_text
        by_name = {name: getattr(entry, self.name)
                   for name, entry in table_at(self.option.default_in).items()}
        return "; ".join(f"{', '.join(name for name in by_name if by_name[name] == x)}: {x:g}"
                         for x in dict.fromkeys(by_name.values()) if x is not None)


def table_at(address: str) -> Any:
    """The table at "package.module:NAME", imported now."""
    module, _, name = address.partition(":")
    return attrgetter(name)(import_module(f"minipar.{module}"))


def declared(kind: type, section: str = "") -> dict[str, OptionField]:
    """The options among the fields of the dataclass `kind`, by the names of their flags.

    Fields of the class itself come before those of its bases.
    """
    found = {}
    for entry in sorted(fields(kind), key=lambda entry: entry.name not in kind.__annotations__):
        if "option" in entry.metadata:
            kinds = get_args(entry.type) or (entry.type,)       # (int, NoneType), or (int,)
            made = OptionField(section, entry.name, kinds[0], type(None) in kinds, entry.default,
                               entry.metadata["option"])
            found[made.key] = made
    return found


def options_of(config: type) -> dict[str, OptionField]:
    """The options in the sections of `config`, by the names of their flags."""
    return {key: made for section in fields(config)
            for key, made in declared(section.type, section.name).items()}


def one_of(names: Iterable[str]) -> str:
    """The names as "a, b or c"."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Base of the options of a command: fields that are declared as in `minipar train`.

    `of_training` are options of `minipar train` that the command also takes, in groups by title.
    --help shows their defaults, unless the command `inherits` them: from a checkpoint, for example.
    """

    of_training: ClassVar[dict[str, tuple[str, ...]]] = {}
    inherits: ClassVar[bool] = False
    given: frozenset[str] = frozenset()         # the options on the command line
    training: dict[str, Any] = field(default_factory=dict)      # values for `minipar train`

    @property
    def options(self) -> dict[str, OptionField]:
        """The options, by the names of their flags."""
        return declared(type(self))

    def get(self, key: str) -> Any:
        """The value of an option."""
        return getattr(self, key)

    def gives(self, key: str) -> bool:
        """True if the command line has the option."""
        return key in self.given


# Options of several commands.

def checkpoint(text: str = "a checkpoint, or the folder of one", default: Any = REQUIRED,
               **more: Any) -> Any:
    """The checkpoint that a command works on."""
    return option(default, text, **{"metavar": "CHECKPOINT"} | more, is_positional=True)


def out_folder(help: str, default: Any = REQUIRED) -> Any:
    """--out, the folder of the results."""
    return option(default, help, metavar="DIR")


def out_file(help: str) -> Any:
    """A file that is written only if it is asked for, such as --png."""
    return option(None, help, metavar="FILE")


def picture(what: str) -> Any:
    """--png, the picture of the results."""
    return out_file(f"draw {what} (.png, .svg or .pdf)")


def perfetto() -> Any:
    """--perfetto, the trace for a viewer."""
    return out_file("write a trace for ui.perfetto.dev or chrome://tracing (.json)")


def ranks(default: int | None, short: str = "", text: str = "number of ranks", **more: Any) -> Any:
    """--ranks, the number of simulated ranks."""
    return option(default, text, least=1, metavar="N", short=short, **more)


def other_text(to_do: str) -> Any:
    """--data, which may replace the text that a checkpoint names."""
    return option(None, f"another text to {to_do}, or the new place of the one before",
                  metavar="docs|PATH")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(CommandOptions):
    """Base of the options of a command that trains, and can go on where it was interrupted."""

    out: Path | None = out_folder("folder of the new checkpoint", None)
    save_every: int = option(0, "also write a checkpoint every N steps", least=0, metavar="N")
    resume: Path | None = option(
        None, "without a checkpoint: go on with what was interrupted in DIR, as it began, and "
        "write there if --out is not given", metavar="DIR")

    @property
    def folder(self) -> Path | None:
        """The folder of the results: --out, or else the folder of --resume; None without both."""
        if self.out is not None or self.resume is None:
            return self.out
        return self.resume if self.resume.is_dir() else self.resume.parent
