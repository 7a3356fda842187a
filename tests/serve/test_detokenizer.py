"""Tokens as text while they come: no half characters, no stop strings, nothing taken back."""

import numpy as np
import pytest

from minipar.serve.detokenizer import Detokenizer


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str) -> np.ndarray:
        return np.array(list(text.encode()))

    def decode(self, ids: np.ndarray) -> str:
        return bytes(ids.tolist()).decode(errors="replace")


def shown(text: str, stops=()) -> list[str]:
    """The text that is shown after each byte of `text`."""
    tokens, detokenizer, found = list(text.encode()), Detokenizer(Bytes(), stops), []
    for end in range(1, len(tokens) + 1):
        is_stop = detokenizer.is_stop(tokens[:end])
        found.append(detokenizer.update(tokens[:end], is_stop or end == len(tokens)))
        if is_stop:
            break
    return found


def test_a_character_is_shown_when_all_its_bytes_are_there():
    assert shown("aé€!") == ["a", "", "é", "", "", "€", "!"]


def test_bytes_that_never_become_a_character_are_shown_at_the_end():
    detokenizer = Detokenizer(Bytes())
    assert detokenizer.update([97, 195], False) == "a"
    assert detokenizer.update([97, 195], True) == "\ufffd"


@pytest.mark.parametrize(("text", "stops", "expected"), [
    ("ab\n\ncd", ["\n\n"], "ab"), ("ab\nc\nd", ["\n\n"], "ab\nc\nd"), ("aab", ["ab"], "a"),
    ("abc", ["c", "bc"], "a"), ("ab\n", ["\n\n"], "ab\n"), ("stop", ["stop"], ""),
    ("x€", ["€"], "x")])
def test_text_ends_before_a_stop_string(text, stops, expected):
    found = shown(text, stops)
    assert "".join(found) == expected
