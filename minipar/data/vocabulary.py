"""Text as numbers, for any model: characters, byte pairs, or the numbers themselves.

    "abc"                                a vocabulary of characters, in a checkpoint
    {"kind": "byte_bpe", …}              GPT-2's tokenizer
    {"kind": "numbers", "size": 32000}   a model whose tokenizer is not known: "17 4 25"

A table (of characters: "kind": "characters") may also name markers (`markers.py`).
"""

from typing import Any, Protocol, Self

import numpy as np

from .byte_bpe import ByteBPE
from .markers import Markers
from .text import CharacterVocabulary


class Vocabulary(Protocol):
    """Text as tokens and back."""

    markers: Markers

    def __len__(self) -> int: ...

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text (n,), int64.  Raises ValueError for a text that it cannot encode."""

    def decode(self, ids: np.ndarray) -> str:
        """The text of tokens (n,)."""

    def description(self) -> Any:
        """The vocabulary, as a checkpoint keeps it."""


class Numbers:
    """Tokens 0 … size - 1, written as numbers with spaces between."""

    kind = "numbers"

    def __init__(self, size: int, markers: Markers | None = None):
        self.size, self.markers = size, markers or Markers()

    def __len__(self):
        return self.size

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text of numbers.  Raises ValueError for any other text."""
        words = text.split()
        wrong = next((word for word in words
                      if not word.isdecimal() or int(word) >= self.size), None)
        if wrong is not None or not words:
            raise ValueError(f"this model has no tokenizer: give numbers from 0 to "
                             f"{self.size - 1}, not {wrong or text!r}")
        return np.array([int(word) for word in words], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The numbers, each with a space behind it."""
        return "".join(f"{i} " for i in np.asarray(ids).tolist())

    def description(self) -> dict[str, Any]:
        """The vocabulary, as a checkpoint keeps it."""
        described = {"kind": self.kind, "size": self.size}
        return described if self.markers == Markers() else \
            described | {"markers": self.markers.description()}

    @classmethod
    def from_description(cls, size: int, markers: dict[str, Any] | None = None) -> Self:
        """The numbers that were described.  Raises ValueError for a wrong description."""
        return cls(size, Markers.from_description(markers, size))


def vocabulary_of(description: Any) -> Vocabulary:
    """The vocabulary whose `description()` this is.  Raises ValueError if it is none."""
    if isinstance(description, str):
        return CharacterVocabulary(description)
    try:
        known = {"byte_bpe": ByteBPE.from_description, "numbers": Numbers.from_description,
                 "characters": CharacterVocabulary.from_description}
        values = dict(description)
        return known[values.pop("kind")](**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a vocabulary is a text of characters, byte_bpe or numbers, not "
                         f"{str(description)[:60]!r} ({error})") from error
