"""GPT-2's tokenizer: byte-pair encoding of the UTF-8 bytes of words (Sennrich et al. 2016).

    " the cat's"  ─▶ words  " the" " cat" "'s"          a space begins a word
                  ─▶ bytes  Ġ t h e                     each byte as a printable character
                  ─▶ merges Ġt h e, Ġt he, Ġthe         the pair of lowest rank first
                  ─▶ token  262

Any text has tokens, for there is a token for each of the 256 bytes, and decoding gives it back.
vocab.json and merges.txt are GPT-2's (Radford et al. 2019).
"""

import json
import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

END_OF_TEXT = "<|endoftext|>"
MOST_WORDS = 1 << 16        # whose tokens are remembered
SPACES = {*range(9, 14), 32, 133, 160, 5760, *range(8192, 8203), 8232, 8233, 8239, 8287, 12288}

# Words are found in a text of classes: L letter, N number, _ space but " ", P other; the letters
# of contractions ('s, 'll, …) and the apostrophe stand for themselves.
CONTRACTED = "strevmld"
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[Lstrevmld]+| ?N+| ?[P']+|[ _]+(?![^ _])|[ _]+")


class Classes(dict):
    """Code point → class, worked out when a code point first occurs; for str.translate."""

    def __missing__(self, code: int) -> str:
        character, category = chr(code), unicodedata.category(chr(code))
        if code in SPACES:
            found = " " if code == 32 else "_"
        elif category[0] == "L":
            found = character if character in CONTRACTED else "L"
        elif category[0] == "N":
            found = "N"
        else:
            found = "'" if character == "'" else "P"
        self[code] = found
        return found


CLASSES = Classes()


def split_words(text: str) -> list[str]:
    """The words of a text, with the spaces before them: GPT-2's pattern."""
    return [text[match.start():match.end()] for match in WORDS.finditer(text.translate(CLASSES))]


def printable_bytes() -> list[str]:
    """A printable character for each of the 256 bytes, as vocab.json writes them."""
    same = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in same else chr(next(others)) for byte in range(256)]


BYTES = printable_bytes()
BYTE_OF = {character: byte for byte, character in enumerate(BYTES)}


class ByteBPE:
    """A byte-level tokenizer: `tokens[i]` is token i, as written in vocab.json; merges by rank.

    `size` is the number of ids, if the model has more than there are tokens; the rest are no text.
    Raises ValueError for tables that do not fit together.
    """

    kind = "byte_bpe"

    def __init__(self, tokens: list[str], merges: list[str], size: int | None = None):
        self.tokens, self.merges = list(tokens), list(merges)
        self.size = len(tokens) if size is None else size
        self._id_of = {token: i for i, token in enumerate(self.tokens)}
        self._ranks = {}
        for rank, merge in enumerate(self.merges):
            pair = tuple(merge.split(" "))
            if len(pair) != 2 or "".join(pair) not in self._id_of:
                raise ValueError(f"merge {rank} is {merge!r}: expected two tokens whose "
                                 "concatenation is a token of vocab.json")
            self._ranks[pair] = rank
        lacking = [byte for byte, token in enumerate(BYTES) if token not in self._id_of]
        if lacking or self.size < len(self.tokens):
            raise ValueError(f"the vocabulary has no token for byte {lacking[0]}" if lacking else
                             f"{len(self.tokens)} tokens for a model of {self.size}")
        self._word_ids = lru_cache(MOST_WORDS)(self._encode_word)

    @classmethod
    def from_files(cls, vocabulary: str | Path, merges: str | Path,
                   size: int | None = None) -> Self:
        """The tokenizer of vocab.json and merges.txt.  Raises ValueError, which names the file."""
        try:
            ids = json.loads(Path(vocabulary).read_text(encoding="utf-8"))
            if sorted(ids.values()) != [*range(len(ids))]:
                raise ValueError("its numbers are not 0, 1, 2, … each once")
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{vocabulary}: expected {{token: number}} ({error})") from error
        lines = Path(merges).read_text(encoding="utf-8").split("\n")
        pairs = [line for line in lines if line and not line.startswith("#version")]
        try:
            return cls(sorted(ids, key=ids.get), pairs, size)
        except ValueError as error:
            raise ValueError(f"{merges}: {error}") from error

    def __len__(self):
        return self.size

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text (n,), int64.  <|endoftext|> is its own token, where there is one.

        Raises ValueError for half a character (a lone surrogate), which has no bytes.
        """
        ids: list[int] = []
        parts = text.split(END_OF_TEXT) if END_OF_TEXT in self._id_of else [text]
        for i, part in enumerate(parts):
            if i:
                ids.append(self._id_of[END_OF_TEXT])
            for word in split_words(part):
                ids += self._word_ids(word)
        return np.array(ids, np.int64)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        """The tokens of one word: its bytes, merged pair by pair."""
        try:
            parts = [BYTES[byte] for byte in word.encode()]
        except UnicodeEncodeError as error:
            raise ValueError(f"{word[error.start]!r} is half a character: leave it out") from error
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:]))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = merge_pair(parts, best)
        return tuple(self._id_of[part] for part in parts)

    def decode(self, ids: np.ndarray) -> str:
        """The text of tokens (n,).  Bytes that are no character yet become U+FFFD."""
        pieces, data = [], bytearray()
        for i in np.asarray(ids).tolist():
            token = self.tokens[i] if 0 <= i < len(self.tokens) else ""
            if token == END_OF_TEXT:
                pieces += [data.decode(errors="replace"), END_OF_TEXT]
                data = bytearray()
            else:
                data += bytes(BYTE_OF[character] for character in token)
        return "".join(pieces) + data.decode(errors="replace")

    def description(self) -> dict[str, Any]:
        """The tables, as a checkpoint keeps them."""
        return {"kind": self.kind, "tokens": self.tokens, "merges": self.merges, "size": self.size}


def merge_pair(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """`parts` with every occurrence of the pair joined, from the left."""
    merged: list[str] = []
    i = 0
    while i < len(parts):
        if tuple(parts[i:i + 2]) == pair:
            merged.append(parts[i] + parts[i + 1])
            i += 2
        else:
            merged.append(parts[i])
            i += 1
    return merged
