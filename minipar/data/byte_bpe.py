"""GPT-2's tokenizer: byte-pair encoding of the UTF-8 bytes of words (Sennrich et al. 2016).

    " the cat's"  ─▶ words  " the" " cat" "'s"          a space begins a word
                  ─▶ bytes  Ġ t h e                     each byte as a printable character
                  ─▶ merges Ġt h e, Ġt he, Ġthe         the pair of lowest rank first
                  ─▶ token  262

Any text of whole characters has tokens, for there is a token for each of the 256 bytes, and
decoding gives the text back.  The tables are vocab.json and merges.txt, in the form of GPT-2's
(Radford et al. 2019).
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Self

import numpy as np

from .markers import Markers, check_ids

END_OF_TEXT = "<|endoftext|>"
MOST_WORDS, LONGEST = 1 << 16, 64       # words whose tokens are cached: their number, their length
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

    `special` tokens do not come from bytes: a text is cut at them first.  By default <|endoftext|>
    is the only one, if it is a token.  `size` is the number of ids, if the model has more ids than
    tokens; the extra ones stand for no text.  By default `markers` make <|endoftext|>, if it is
    special, both the begin and the end of a text.

    Every text gets the token `prefix` before it, if given.  With `prefix_space`, a text and what
    follows a special token begin with a space.  Raises ValueError for tables that do not fit
    together.
    """

    kind = "byte_bpe"

    def __init__(self, tokens: Iterable[str], merges: Iterable[str], size: int | None = None,
                 special: Iterable[str] | None = None, markers: Markers | None = None,
                 prefix: int | None = None, prefix_space: bool = False):
        self.tokens, self.merges = list(tokens), list(merges)
        self.size = len(self.tokens) if size is None else size
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.special = [END_OF_TEXT] * (END_OF_TEXT in self.ids) if special is None \
            else list(special)
        if len(self.ids) < len(self.tokens) or self.size < len(self.tokens):
            raise ValueError(f"{len(self.ids)} different tokens, not {self.size}, which is the "
                             "number of ids: get the tokenizer of this model")
        lacking = next((token for token in [*BYTES, *self.special] if token not in self.ids), "")
        if lacking or "" in self.special:
            raise ValueError(f"the vocabulary has no token {lacking!r}: get vocab.json again")
        check_ids([] if prefix is None else [prefix], self.size)
        self.prefix, self.prefix_space = prefix, prefix_space
        self.markers = self._default_markers() if markers is None else markers
        self._bytes = [token.encode() if token in self.special else bytes_of(token)
                       for token in self.tokens]
        self._joined = dict(self._joins())
        # The longest first, so that a special token that begins like another one is found.
        names = sorted(self.special, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None
        self._remembered = lru_cache(MOST_WORDS)(self._encode_word)

    def _default_markers(self) -> Markers:
        if END_OF_TEXT not in self.special:
            return Markers()
        return Markers(self.ids[END_OF_TEXT], (self.ids[END_OF_TEXT],))

    def _joins(self) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
        """((left, right), (rank, joined)) of each merge; the tokens left, right, joined as ids."""
        for rank, merge in enumerate(self.merges):
            left, _, right = merge.partition(" ")
            ids = [self.ids.get(part) for part in (left, right, left + right)]
            if not left or not right or None in ids:
                raise ValueError(f"merge {rank} is {merge!r}: expected two tokens, joined one more")
            yield (ids[0], ids[1]), (rank, ids[2])

    @classmethod
    def from_files(cls, vocabulary: str | Path, merges: str | Path, size: int | None = None,
                   added: Mapping[str, int] | None = None, **options: Any) -> Self:
        """The tokenizer of vocab.json and merges.txt.  Raises ValueError, which names the file.

        `added` are special tokens with their ids, beside <|endoftext|>; `options` go to the class.
        """
        try:
            ids = json.loads(Path(vocabulary).read_text(encoding="utf-8")) | (added or {})
            if sorted(ids.values()) != [*range(len(ids))]:
                raise ValueError("its numbers are not 0, 1, 2, … each once")
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{vocabulary}: expected {{token: number}} ({error})") from error
        special = sorted({*[END_OF_TEXT] * (END_OF_TEXT in ids), *(added or {})}, key=ids.get)
        try:
            lines = Path(merges).read_text(encoding="utf-8").split("\n")
            pairs = [line.rstrip("\r") for line in lines[lines[0].startswith("#version"):]]
            return cls(sorted(ids, key=ids.get), filter(None, pairs), size, special, **options)
        except ValueError as error:
            raise ValueError(f"{merges}: {error}") from error

    def __len__(self):
        return self.size

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text (n,), int64.

        Raises ValueError for half a character (a lone surrogate), which has no bytes.
        """
        ids = [] if self.prefix is None else [self.prefix]
        for i, part in enumerate(self._cut.split(text) if self._cut else [text]):
            if i % 2:                   # between the parts of the text
                ids.append(self.ids[part])
                continue
            if self.prefix_space and part and not part.startswith(" "):
                part = " " + part
            for word in split_words(part):
                ids += self._remembered(word) if len(word) <= LONGEST else self._encode_word(word)
        return np.array(ids, np.int64)

    def _encode_word(self, word: str) -> list[int]:
        """The tokens of one word: its bytes, merged pair by pair."""
        try:
            return merge([self.ids[BYTES[byte]] for byte in word.encode()], self._joined)
        except UnicodeEncodeError as error:
            raise ValueError(f"{word[error.start]!r} is half a character: leave it out") from error

    def decode(self, ids: np.ndarray) -> str:
        """The text of tokens (n,).  Bytes that are no character yet become U+FFFD.

        Raises ValueError for an id that no token has.
        """
        ids = np.asarray(ids)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.size:
            raise ValueError(f"expected tokens in 0 … {self.size - 1}, not in {ids.min()} … "
                             f"{ids.max()}")
        known = len(self.tokens)
        return b"".join(self._bytes[i] for i in ids.tolist() if i < known).decode(errors="replace")

    def description(self) -> dict[str, Any]:
        """The tables, as a checkpoint keeps them; only a special token may have a line break."""
        has_breaks = any("\n" in token for token in self.special)
        described = {"kind": self.kind, "size": self.size,
                     "tokens": self.tokens if has_breaks else "\n".join(self.tokens),
                     "merges": "\n".join(self.merges), "special": self.special}
        if self.markers != self._default_markers():
            described["markers"] = self.markers.description()
        if self.prefix is not None or self.prefix_space:
            described |= {"prefix": self.prefix, "prefix_space": self.prefix_space}
        return described

    @classmethod
    def from_description(cls, tokens: str | list[str], size: int, merges: str,
                         special: list[str], markers: dict[str, Any] | None = None,
                         prefix: int | None = None, prefix_space: bool = False) -> Self:
        """The tokenizer that was described.  Raises ValueError for a wrong description."""
        if type(size) is not int or type(prefix_space) is not bool:
            raise ValueError(f"a size is a whole number and prefix_space a flag, not {size!r:.20} "
                             f"and {prefix_space!r:.20}")
        tokens = tokens if isinstance(tokens, list) else tokens.split("\n")
        return cls(tokens, merges.split("\n") if merges else [], size, special,
                   None if markers is None else Markers.from_description(markers, size), prefix,
                   prefix_space)


def bytes_of(token: str) -> bytes:
    """The bytes that a token stands for.  Raises ValueError for one that vocab.json cannot have."""
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError as error:
        raise ValueError(f"the token {token!r} is no special one, but {error} stands for no "
                         "byte: get vocab.json again") from error


def merge(parts: list[int], joined: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """`parts` with pairs joined: the pair of lowest rank first, equal pairs from the left.

    `joined` gives a pair's (rank, token).  n parts take O(n log n) steps.
    """
    tokens: list[int | None] = [*parts]
    before, after = [*range(-1, len(parts) - 1)], [*range(1, len(parts) + 1)]
    waiting: list[tuple[int, int, int, int]] = []       # rank, left place, token, right place

    def offer(left: int) -> None:
        """Let the pair that begins at `left` wait, if it can be joined."""
        if left >= 0 and (right := after[left]) < len(tokens):
            pair = tokens[left], tokens[right]
            if pair in joined:
                rank, token = joined[pair]
                heappush(waiting, (rank, left, token, right))

    for left in range(len(tokens)):
        offer(left)
    while waiting:
        rank, left, token, right = heappop(waiting)
        if after[left] != right or joined.get((tokens[left], tokens[right])) != (rank, token):
            continue                    # one of the two has been joined meanwhile
        tokens[left], tokens[right] = token, None
        after[left] = after[right]
        if after[left] < len(tokens):
            before[after[left]] = left
        offer(before[left])
        offer(left)
    return [token for token in tokens if token is not None]
