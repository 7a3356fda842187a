"""Text as numbers: a text without a download, one id for each character, and batches of them.

    text = load_text("docs")
    for batch in text.batches(batch_size=32, num_steps=100, seed=0): …

The first nine tenths of a text are for training, the rest for validation.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from .batches import Batch, TextBatches
from .markers import Markers


def documentation_text() -> str:
    """The language documentation that comes with Python, about half a megabyte of English.

    It differs between versions of Python.  Raises FileNotFoundError for an installation without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise FileNotFoundError("this Python carries no pydoc_data.topics: install its "
                                "documentation or use read_text(path)") from None
    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8.

    Raises FileNotFoundError for a missing file, ValueError for one that is empty or no text.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file {path}: give the path of a text file")
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give the path of a text file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at "
                         f"{error.start}): convert it, for example with iconv -t utf-8") from None
    if not text:
        raise ValueError(f"{path} is empty: give a file with text in it")
    return text


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class CharacterVocabulary:
    """Ids for characters: id i stands for `characters[i]`.

    `characters` are distinct and sorted by code point, so that two vocabularies of the same
    characters agree.  Raises ValueError if they are not, or if there are none.
    """

    def __init__(self, characters: str, markers: Markers | None = None):
        if not characters or characters != "".join(sorted(set(characters))):
            raise ValueError("a vocabulary is one or more characters, sorted, each once, not "
                             f"{characters[:20]!r}: make it with CharacterVocabulary.from_text")
        self.characters, self.markers = characters, markers or Markers()
        self._codes = _code_points(characters)
        self._id_of_code = np.full(self._codes[-1] + 2, -1)     # the last place: all codes above
        self._id_of_code[self._codes] = np.arange(len(characters))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The vocabulary of the characters that occur in `text`."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.characters)

    def description(self) -> str | dict[str, Any]:
        """The vocabulary, as a checkpoint keeps it: the characters alone if none is a marker."""
        if self.markers == Markers():
            return self.characters
        return {"kind": "characters", "characters": self.characters,
                "markers": self.markers.description()}

    @classmethod
    def from_description(cls, characters: str, markers: dict[str, Any]) -> Self:
        """The vocabulary that was described.  Raises ValueError for a wrong description."""
        return cls(characters, Markers.from_description(markers, len(characters)))

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text: (len(text),) int64.  Raises ValueError for an unknown character."""
        codes = _code_points(text)
        ids = self._id_of_code.take(codes, mode="clip")
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            raise ValueError(f"character {text[unknown[0]]!r} at position {unknown[0]} is not "
                             f"among the {len(self)} of this vocabulary: make it from a text that "
                             "has it, or leave it out")
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """The text of `ids` (n,).  Raises ValueError for an id that no character has."""
        ids = np.asarray(ids)
        if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= len(self)):
            raise ValueError(f"expected integers in 0 … {len(self) - 1}, not {ids.dtype} in "
                             f"{ids.min()} … {ids.max()}")
        return self._codes[ids.astype(np.int64)].tobytes().decode("utf-32-le", "surrogatepass")


class TextDataset:
    """A text as token ids, one for each character, and batches to train a language model on."""

    def __init__(self, text: str):
        self.vocabulary = CharacterVocabulary.from_text(text)
        self.ids = self.vocabulary.encode(text)

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        return len(self.vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text: (len(text),) int64.  Raises ValueError for an unknown character."""
        return self.vocabulary.encode(text)

    def decode(self, ids: np.ndarray) -> str:
        """The text of `ids` (n,).  Raises ValueError for an id that no character has."""
        return self.vocabulary.decode(ids)

    def batches(self, *, context: int = 64, batch_size: int, num_steps: int, seed: int = 0,
                split: str = "train", rows: Callable[[int], range] | None = None
                ) -> Iterator[Batch]:
        """Yield the batches of `num_steps` steps: `batch_size` windows of `context` tokens each.

        Every rank draws the same windows.  With `rows`, such as `strategy.rows`, each batch holds
        only rows(batch_size) of them: the rows that this rank processes.  `split` is "train" (the
        first nine tenths of the text) or "validation".
        """
        batches = TextBatches(self.ids, context, batch_size, seed, split)
        mine = range(batch_size) if rows is None else rows(batch_size)
        for step in range(num_steps):
            yield batches.batch(step).select(mine)


def load_text(name: str | Path) -> TextDataset:
    """Load Python's own documentation ("docs"), or the text file of that path."""
    return TextDataset(documentation_text() if name == "docs" else read_text(name))
