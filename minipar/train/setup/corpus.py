"""Find and read the text that --data names.

    docs              Python's own documentation
    synthetic         a made-up language with a known best loss
    my.txt            a file: where it was when the checkpoint was written, else at this path

If the text of a checkpoint is gone, only work that needs it fails (NoText).
"""

from pathlib import Path
from typing import NamedTuple

from ...data import CharacterVocabulary, documentation_text, read_text, synthetic_sequence
from ...launcher import UsageError, errors_as_usage
from ..config import TrainConfig

BUILT_IN = ("docs", "synthetic", "digits")
SYNTHETIC_LETTERS, SYNTHETIC_NOISE, SYNTHETIC_LENGTH = "ABCDEFGHIJKLMNOP", 0.2, 200_000


class NoText(UsageError):
    """The text that a checkpoint was trained on is gone; work that needs none can go on."""


class Corpus(NamedTuple):
    """A text, and the smallest possible loss in nats per token, where it is known."""

    text: str
    optimal_loss: float | None = None


def read_corpus(config: TrainConfig) -> Corpus:
    """Read the text that --data names.  Raises NoText if it is gone, else UsageError."""
    if config.data.source == "synthetic":
        made = synthetic_sequence(SYNTHETIC_LENGTH, len(SYNTHETIC_LETTERS), SYNTHETIC_NOISE,
                                  data_seed(config))
        return Corpus(CharacterVocabulary(SYNTHETIC_LETTERS).decode(made.ids), made.optimal_loss)
    with errors_as_usage():
        return Corpus(documentation_text() if config.data.source == "docs" else
                      read_text(find_text(config)))


def data_seed(config: TrainConfig) -> int:
    """The seed of the synthetic language: the one in the checkpoint, or else --seed."""
    recorded = config.data.recorded.seed
    return config.run.seed if recorded is None else recorded


def recorded_path(config: TrainConfig) -> str | None:
    """The path of the text when the checkpoint was written; None if --data names another."""
    recorded = config.data.recorded
    return recorded.path if recorded.source == config.data.source else None


def find_text(config: TrainConfig) -> Path:
    """The path of the text that --data names.  Raises NoText if a checkpoint's text is gone."""
    before = recorded_path(config)
    for place in filter(None, (before, config.data.source)):
        if Path(place).exists():
            return Path(place)
    if before is not None:
        raise NoText(f"the text that this model was trained on, {before}, is not there any more: "
                     "say with --data where it is, or give another one of the same characters")
    return Path(config.data.source)


def name_of_text(config: TrainConfig) -> str:
    """The text that --data names, in words or as a path, whether or not it is there."""
    names = {"docs": "Python's own documentation", "synthetic": "the synthetic language"}
    return names.get(config.data.source) or recorded_path(config) or str(config.data.source)


def absolute_path(config: TrainConfig) -> str | None:
    """The absolute path of the text, for a checkpoint; None if --data names no file."""
    if config.data.source in BUILT_IN:
        return None
    try:
        return str(find_text(config).absolute())
    except NoText:
        return recorded_path(config)
