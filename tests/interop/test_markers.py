"""Begin, end and padding tokens: which file names them, and that they come back."""

import json

import pytest

from minipar.data import ByteBPE, CharacterVocabulary, Markers, Numbers, vocabulary_of
from minipar.interop import save_pretrained
from minipar.interop.tokenizer import read_tokenizer
from minipar.nn import GPT, GPTConfig
from tests.interop.test_tokenizer_files import (
    MERGES,
    SIZE,
    TOKENS,
    read,
    tokenizer_json,
    two_files,
)

MARKERS = {
    "none": ({}, {}, {}, Markers()),
    "config": ({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}, {}, {},
               Markers(0, (1,), (), 2)),
    "a list": ({"eos_token_id": [1, 5]}, {}, {}, Markers(end=(1, 5))),
    "both files": ({"eos_token_id": 1}, {"eos_token_id": [7, 1], "pad_token_id": 2}, {},
                   Markers(end=(1,), more_ends=(7,), pad=2)),
    "texts": ({}, {}, {"bos_token": "<s>", "eos_token": "</s>"}, Markers(0, (), (1,))),
    "texts beside numbers": ({"eos_token_id": 5}, {}, {"eos_token": "</s>"},
                             Markers(end=(5,), more_ends=(1,))),
    "token 0": ({"eos_token_id": 0}, {}, {}, Markers(end=(0,))),
    "-1 is none": ({"eos_token_id": 1, "pad_token_id": -1}, {}, {}, Markers(end=(1,)))}


@pytest.mark.parametrize("config, generation, names, markers", MARKERS.values(), ids=MARKERS)
def test_markers_there_and_back(tmp_path, config, generation, names, markers):
    (tmp_path / "there").mkdir()
    found, _ = read(tmp_path / "there", two_files(**names) | {
        "config.json": config, "generation_config.json": generation})
    assert found.markers == markers
    save_pretrained(tmp_path / "back", GPT(GPTConfig(SIZE, 8, 1, 2, 8)).initialize(), found)
    assert read_tokenizer(tmp_path / "back", SIZE)[0].markers == markers
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert back["eos_token_id"] == config.get("eos_token_id")
    assert (tmp_path / "back" / "generation_config.json").exists() == bool(markers.more_ends)


@pytest.mark.parametrize("files", [
    {"tokenizer.json": tokenizer_json(["</s>"], normalizer={"type": "NFC"})},
    {"tokenizer.json": tokenizer_json(["</s>"], more={"lstrip": True})},
    {"tokenizer_config.json": {"eos_token": "</s>", "tokenizer_class": "RobertaTokenizer",
                               "added_tokens_decoder": {"1": {"content": "</s>"}}}}])
def test_the_end_is_known_though_the_tokenizer_is_not_followed(tmp_path, files):
    found, said = read(tmp_path, two_files(eos_token="</s>") | files)
    assert isinstance(found, Numbers) and found.markers.ends == (1,) and "as numbers" in said


def test_a_number_that_is_no_token_is_told(tmp_path):
    found, note = read(tmp_path, two_files() | {"config.json": {"eos_token_id": SIZE}})
    assert found.markers == Markers() and f"eos_token_id {SIZE} is no token of this model" in note


@pytest.mark.parametrize("vocabulary", [
    Numbers(5, Markers(1, (2,), (3,), 4)),
    CharacterVocabulary("abcde", Markers(end=(4, 2))),
    ByteBPE(TOKENS, MERGES, SIZE, ["<s>", "</s>", "<fill>"], Markers(0, (1, 40), (2,), 2), 0, True),
    ByteBPE(TOKENS, MERGES, SIZE, ["<s>", "</s>"], Markers(end=(40,)))],
    ids=["numbers", "characters", "byte_bpe", "an end that is text"])
def test_every_vocabulary_there_and_back(tmp_path, vocabulary):
    model = GPT(GPTConfig(len(vocabulary), 8, 1, 2, 8)).initialize()
    save_pretrained(tmp_path, model, vocabulary)
    found, _ = read_tokenizer(tmp_path, len(vocabulary))
    assert type(found) is type(vocabulary) and found.description() == vocabulary.description()
    again = vocabulary_of(json.loads(json.dumps(found.description())))
    assert again.description() == found.description() and again.markers == vocabulary.markers


@pytest.mark.parametrize("markers", [{"end": [5]}, {"end": [True]}, {"pad": "a"}, {"more": 1}, 3,
                                     {"begin": -1}, {"end": 2}])
def test_markers_of_a_broken_checkpoint(markers):
    with pytest.raises(ValueError, match="marker"):
        vocabulary_of({"kind": "numbers", "size": 5, "markers": markers})
