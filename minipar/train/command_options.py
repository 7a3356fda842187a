"""The options of a command but `train`: fields of a dataclass, and those that several have.

    @dataclass(frozen=True, kw_only=True)
    class Options(CommandOptions):
        checkpoint: Path = checkpoint()
        samples: int | None = option(None, "…", least=1, needs=Beside("method", "gptq", "…"))
        out: Path = out_folder("folder of the quantized checkpoint")

`flags.add_options` makes flags of them, `flags.read_options` checks what the command line gives.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from .option import REQUIRED, OptionField, declared, option


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Base of the options of a command: fields that are declared as those of `minipar train`.

    `of_training` are options of `minipar train` that the command takes, too, in groups by title;
    those that are not given have the default that --help shows, or if `inherits` another one.
    """

    of_training: ClassVar[dict[str, tuple[str, ...]]] = {}
    inherits: ClassVar[bool] = False
    given: frozenset[str] = frozenset()         # the options that the command line has
    training: dict[str, Any] = field(default_factory=dict)      # and those of `minipar train`

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
    """--data, for a checkpoint that knows its own."""
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
        """The folder of the results: --out, or where --resume is; None without both."""
        if self.out is not None or self.resume is None:
            return self.out
        return self.resume if self.resume.is_dir() else self.resume.parent
