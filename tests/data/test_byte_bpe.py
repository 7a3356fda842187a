"""GPT-2's tokenizer: recorded words and ids, every text comes back, tables that do not fit."""

import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar.data import ByteBPE, vocabulary_of
from minipar.data.byte_bpe import BYTES, CLASSES, END_OF_TEXT, merge, split_words
from minipar.serve.detokenizer import Detokenizer

DATA = Path(__file__).parents[1] / "interop" / "data" / "byte_bpe"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))["texts"]
TOKENIZER = ByteBPE.from_files(DATA / "vocab.json", DATA / "merges.txt")


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: repr(case["text"][:20]))
def test_words_and_ids_are_those_recorded(case):
    assert [word for part in case["text"].split(END_OF_TEXT) for word in split_words(part)] \
        == [word for word in case["words"] if word != END_OF_TEXT]
    ids = TOKENIZER.encode(case["text"])
    assert ids.tolist() == case["ids"] and ids.dtype == np.int64
    assert [TOKENIZER.tokens[i] for i in ids] == case["tokens"]
    assert TOKENIZER.decode(ids) == case["text"]


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_every_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert "".join(split_words(text)) == text


@given(st.text(alphabet=" 's the\n\té½²Ⅷ𝟘'll漢字\x1c\x85\u00a0!<|endoftext|>"))
@settings(max_examples=100, deadline=None)
def test_every_text_of_hard_characters_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_classes_are_those_of_unicode():
    kinds = [CLASSES[code] for code in range(sys.maxunicode + 1)]
    spaces = [code for code, kind in enumerate(kinds) if kind in " _"]
    assert len(spaces) == 25 and not {28, 29, 30, 31} & {*spaces}
    for character in "½²Ⅷ٣":       # \d does not find them all, [^\W\d_] takes some for letters
        assert CLASSES[ord(character)] == "N" == unicodedata.category(character)[0]
    assert split_words("x²y Ⅷ½a\x1cb") == ["x", "²", "y", " Ⅷ½", "a", "\x1c", "b"]


@pytest.mark.parametrize("text, words", [
    ("a  b", ["a", " ", " b"]), ("a \n b", ["a", " \n", " b"]), ("a  ", ["a", "  "]),
    ("it's IT'S 's's", ["it", "'s", " IT", "'", "S", " '", "s", "'s"]),
    ("a\u00a0b", ["a", "\u00a0", "b"]), ("x'll 'tis", ["x", "'ll", " '", "tis"]),
    ("a_b1c", ["a", "_", "b", "1", "c"])])
def test_cuts(text, words):
    assert split_words(text) == words


def by_definition(parts, joined):
    """Join the first pair of the lowest rank, again and again."""
    parts = list(parts)
    while True:
        pairs = enumerate(zip(parts, parts[1:]))
        pairs = [(joined[pair], i) for i, pair in pairs if pair in joined]
        if not pairs:
            return parts
        (_, token), i = min(pairs)
        parts[i:i + 2] = [token]


def test_merging_is_by_rank_and_from_the_left():
    rng = np.random.default_rng(0)
    for _ in range(300):
        pairs = {(int(a), int(b)) for a, b in rng.integers(0, 9, (12, 2))}
        joined = {pair: (rank, 3 + rank % 6) for rank, pair in enumerate(sorted(pairs))}
        joined = {pair: (int(rank), token) for rank, (pair, (_, token)) in zip(
            rng.permutation(len(joined)), joined.items())}
        parts = rng.integers(0, 3, rng.integers(0, 14)).tolist()
        assert merge(parts, joined) == by_definition(parts, joined)


def test_a_word_without_end_takes_no_quadratic_time():
    text = "he" * 50_000            # the definition would look at 10^10 pairs
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text and len(ids) < len(text)


def test_half_a_character_is_refused():
    with pytest.raises(ValueError, match="'.ud83d' is half a character"):
        TOKENIZER.encode("a\ud83d")


def test_a_stream_holds_back_incomplete_characters():
    text = "é漢🙂 ok"
    ids, detokenizer, shown = TOKENIZER.encode(text).tolist(), Detokenizer(TOKENIZER), []
    assert len(ids) > len(text)                     # characters of several tokens
    for i in range(len(ids)):
        shown.append(detokenizer.update(ids[:i + 1], is_last=i + 1 == len(ids)))
    assert "".join(shown) == text and "\ufffd" not in "".join(shown) and "" in shown
    assert TOKENIZER.decode(TOKENIZER.encode("漢")[:1]) == "\ufffd"


def test_ids_without_a_token_and_padding():
    padded = ByteBPE(TOKENIZER.tokens, TOKENIZER.merges, 512)
    assert len(padded) == 512 and padded.decode([39, 511, 68]) == "He"
    for wrong in ([-1], [512]):
        with pytest.raises(ValueError, match="expected tokens in 0 … 511"):
            padded.decode(wrong)
    assert TOKENIZER.decode(np.array([], np.int64)) == ""


def test_special_tokens_are_cut_off_first_the_longest_first():
    more = ["<|a|>", "<|a|><|b|>", "two words"]
    found = ByteBPE([*TOKENIZER.tokens, *more], TOKENIZER.merges, special=[END_OF_TEXT, *more])
    first = len(TOKENIZER.tokens)
    text = "He<|a|><|b|>He<|a|>two words"
    assert found.encode(text).tolist() == [39, 68, first + 1, 39, 68, first, first + 2]
    assert found.decode(found.encode(text)) == text
    none = ByteBPE(TOKENIZER.tokens, TOKENIZER.merges, special=[])
    assert END_OF_TEXT not in [none.tokens[i] for i in none.encode(END_OF_TEXT)]
    assert none.decode(none.encode(END_OF_TEXT)) == END_OF_TEXT


def test_a_checkpoint_keeps_it():
    described = json.loads(json.dumps(TOKENIZER.description()))
    again = vocabulary_of(described)
    assert again.description() == TOKENIZER.description() and len(again) == len(TOKENIZER)
    assert again.encode(EXPECTED[1]["text"]).tolist() == EXPECTED[1]["ids"]
    for change in ({"tokens": None}, {"tokens": ""}, {"merges": 3}, {"size": "9"}, {"more": 1},
                   {"special": [1]}, {"size": 3}, {"kind": "bpe"}):
        with pytest.raises(ValueError):
            vocabulary_of({**described, **change})


@pytest.mark.parametrize("tokens, merges, said", [
    (BYTES[:-1], [], "no token 'ÿ'"), ([*BYTES, "a"], [], "256 different tokens, not 257"),
    ([*BYTES, "two words"], [], "the token 'two words' is no special one, but ' ' stands for no"),
    (BYTES, ["a b"], "merge 0 is 'a b'"), ([*BYTES, "ab"], ["a b", "ab"], "merge 1 is 'ab'"),
    ([*BYTES, "ab"], ["x ab"], "merge 0")])
def test_tables_that_do_not_fit(tokens, merges, said):
    with pytest.raises(ValueError, match=said):
        ByteBPE(tokens, merges)


@pytest.mark.parametrize("vocab, merges, said", [
    ("{", "", "vocab.json: expected"), ("[1]", "", "vocab.json: expected"),
    (json.dumps({"a": 0, "b": 2}), "", "numbers are not 0, 1, 2"),
    (json.dumps({"a": "x"}), "", "vocab.json: expected"),
    (json.dumps({token: i for i, token in enumerate(BYTES)}), "#version: 0.2\n# #\n",
     "merges.txt: merge 0 is '# #'")])
def test_files_that_do_not_fit(tmp_path, vocab, merges, said):
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(ValueError, match=said):
        ByteBPE.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")


def test_lines_of_merges_may_end_in_carriage_returns(tmp_path):
    (tmp_path / "merges.txt").write_text((DATA / "merges.txt").read_text().replace("\n", "\r\n"),
                                         newline="")
    again = ByteBPE.from_files(DATA / "vocab.json", tmp_path / "merges.txt")
    assert again.merges == TOKENIZER.merges
