"""The text that --data names, and where it is now.

    docs              Python's own documentation
    synthetic         a made-up language with a known best loss
    my.txt            a file: where it was when the checkpoint was written, else the path from here

A text that is gone is missed only where it is read.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from ..data import CharacterVocabulary, documentation_text, read_text, synthetic_sequence
from ..launcher import UsageError

NAMED = ("docs", "synthetic", "digits")
SYNTHETIC_LETTERS, SYNTHETIC_NOISE, SYNTHETIC_LENGTH = "ABCDEFGHIJKLMNOP", 0.2, 200_000


class NoText(UsageError):
    """The text that a checkpoint was trained on is gone; what needs none can go on."""


class Corpus(NamedTuple):
    """A text, and the smallest loss in nats per token that any model can have, if it is known."""

    text: str
    optimal_loss: float | None = None


def read_corpus(options: argparse.Namespace) -> Corpus:
    """Read what --data names.  Raises NoText, or UsageError if that cannot be."""
    if options.data == "synthetic":
        made = synthetic_sequence(SYNTHETIC_LENGTH, len(SYNTHETIC_LETTERS), SYNTHETIC_NOISE,
                                  data_seed(options))
        return Corpus(CharacterVocabulary(SYNTHETIC_LETTERS).decode(made.ids), made.optimal_loss)
    try:
        if options.data == "docs":
            return Corpus(documentation_text())
        return Corpus(read_text(find_text(options)))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def data_seed(options: argparse.Namespace) -> int:
    """The seed that made the synthetic language: of the first training, where there are several."""
    return options.seed if options.data_seed is None else options.data_seed


def find_text(options: argparse.Namespace) -> Path:
    """The file that --data names.  Raises NoText if only a checkpoint names it, and it is gone."""
    then = options.data_paths.get(options.data)
    for place in filter(None, (then, options.data)):
        if Path(place).exists():
            return Path(place)
    if then is not None:
        raise NoText(f"the text that this model was trained on, {then}, is not there any more: "
                     "say with --data where it is, or give another one of the same characters")
    return Path(options.data)


def place_of(options: argparse.Namespace) -> str | None:
    """The absolute path of the text, for a checkpoint; None if --data names no file."""
    if options.data in NAMED:
        return None
    try:
        return str(find_text(options).absolute())
    except NoText:
        return options.data_paths[options.data]
