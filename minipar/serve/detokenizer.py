"""Turn tokens into text while they come; `streaming.py` sends the text.

    tokens   72 105 195 │ 169 33         195 begins a character and 169 ends it, so the character
    shown    "Hi"       │ "é!"           is shown after 169
    stop     "\\n\\n": a line break is held back until the next token shows if the stop is whole

Text that was shown is never taken back.  An end token is not shown.
"""

from collections.abc import Sequence
from os.path import commonprefix

import numpy as np

from ..data import Vocabulary

INCOMPLETE = "\ufffd"       # stands for bytes that are no character yet


class Detokenizer:
    """The text of one answer, which ends before a string of `stops` or a token of `ends`."""

    def __init__(self, tokenizer: Vocabulary, stops: Sequence[str] = (), ends: Sequence[int] = ()):
        self.tokenizer, self.stops, self.ends = tokenizer, tuple(stops), tuple(ends)
        self.shown = ""

    def __call__(self, tokens: Sequence[int]) -> bool:
        """The same as `is_stop`, so that an engine can take a detokenizer as its `is_stop`."""
        return self.is_stop(tokens)

    def is_stop(self, tokens: Sequence[int]) -> bool:
        """True if the last of `tokens` is an end token, or their text holds a stop string."""
        return self._has_ended(tokens) or (
            bool(self.stops) and self._before_stop(self._decode(tokens)) is not None)

    def update(self, tokens: Sequence[int], is_last: bool) -> str:
        """The new text to show, given all tokens so far; with `is_last`, nothing is held back."""
        text = self._decode(tokens)
        cut = self._before_stop(text)
        if cut is not None:
            text = cut
        elif not is_last:
            text = text.rstrip(INCOMPLETE)
            text = text[:len(text) - self._begun_stop(text)]
        new = text[len(self.shown):]
        self.shown += new
        return new

    def places(self, tokens: Sequence[int], first: int = 0) -> list[int]:
        """The place in the shown text at which each token from index `first` on begins.

        A token within a character begins where the character does.  A token that is not shown yet,
        or is cut off by a stop string, begins where the shown text ends.
        """
        text = self._decode(tokens)
        before = (self._decode(tokens[:i]) for i in range(first, len(tokens)))
        return [min(len(commonprefix([text, each])), len(self.shown)) for each in before]

    def _decode(self, tokens: Sequence[int]) -> str:
        shown = tokens[:-1] if self._has_ended(tokens) else tokens
        return self.tokenizer.decode(np.array(shown, np.int64))

    def _has_ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.ends

    def _before_stop(self, text: str) -> str | None:
        """The text before the first stop string, or None if it has none."""
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        return text[:min(places)] if places else None

    def _begun_stop(self, text: str) -> int:
        """The number of characters at the end that may begin a stop string."""
        return max((n for stop in self.stops for n in range(1, len(stop))
                    if text.endswith(stop[:n])), default=0)
