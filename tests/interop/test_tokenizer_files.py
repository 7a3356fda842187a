"""Which tokens a folder's tokenizer files give a text, and which files are not followed."""

import json
import re

import pytest

from minipar.data import Numbers, vocabulary_of
from minipar.data.byte_bpe import BYTES
from minipar.interop import InteropError
from minipar.interop.tokenizer import read_tokenizer

MERGES = ["Ġ o", "o n", "2 0", "20 2"]
TOKENS = ["<s>", "</s>", "<fill>", *BYTES, "Ġo", "on", "20", "202"]
IDS = {token: i for i, token in enumerate(TOKENS)}
N, SPACE_O, ON, USER = IDS["n"], IDS["Ġo"], IDS["on"], len(IDS)
SIZE = len(IDS) + 1
FLAGS = {"special": True, "lstrip": False, "rstrip": False, "single_word": False}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPACED = LEVEL | {"add_prefix_space": True}
BEGIN = {"type": "TemplateProcessing",
         "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}}]}
NOTHING = {"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"Sequence": {"id": "A", "type_id": 0}}]}
AROUND = BEGIN | {"single": [*BEGIN["single"], {"SpecialToken": {"id": "<s>", "type_id": 0}}]}


def sequence(key, *parts):
    return {"type": "Sequence", key: [*parts]}


def tokenizer_json(added=("<s>",), more=None, model=None, **parts):
    """A tokenizer.json; `more` are fields of its added token <|user|>."""
    tokens = [{"id": IDS[token], "content": token, **FLAGS} for token in added]
    if more is not None:
        tokens.append({"id": USER, "content": "<|user|>", **FLAGS, **more})
    return {"normalizer": None, "pre_tokenizer": LEVEL, "post_processor": None, "decoder": LEVEL,
            "added_tokens": tokens, "model": {"type": "BPE", "vocab": IDS, "merges": MERGES,
                                              **(model or {})}, **parts}


def two_files(**config):
    """vocab.json, merges.txt and tokenizer_config.json."""
    return {"vocab.json": IDS, "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""]),
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"} | config}


def read(folder, files, size=SIZE):
    """The tokenizer of these files, and what is said of it."""
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_tokenizer(folder, size)


# The ids are those of transformers 5.24 and tokenizers 0.23.
FOLLOWED = {
    "plain": (tokenizer_json(), "on on", [ON, SPACE_O, N]),
    "space": (tokenizer_json(pre_tokenizer=SPACED), "on<s>on<s> on",
              [SPACE_O, N, 0, SPACE_O, N, 0, SPACE_O, N]),
    "level in a sequence": (tokenizer_json(pre_tokenizer=sequence("pretokenizers", SPACED)), "on",
                            [SPACE_O, N]),
    "begin": (tokenizer_json(post_processor=BEGIN), "on", [0, ON]),
    "begin twice": (tokenizer_json(post_processor=BEGIN), "<s>on", [0, 0, ON]),
    "begin and space": (tokenizer_json(post_processor=BEGIN, pre_tokenizer=SPACED), "on",
                        [0, SPACE_O, N]),
    "begin in a sequence": (tokenizer_json(post_processor=sequence("processors", LEVEL, BEGIN)),
                            "on", [0, ON]),
    "an empty template": (tokenizer_json(post_processor=NOTHING), "on", [ON]),
    "offsets alone": (tokenizer_json(post_processor=SPACED), "on", [ON]),
    "no normalizer": (tokenizer_json(normalizer=sequence("normalizers")), "on", [ON]),
    "never unknown": (tokenizer_json(model={"unk_token": "<s>"}), "on", [ON]),
    "merges in pairs": (tokenizer_json(model={"merges": [m.split() for m in MERGES]}), "202",
                        [IDS["202"]]),
    "added": (tokenizer_json(more={}), "on<|user|>on", [ON, USER, ON]),
    "added, not special": (tokenizer_json(more={"special": False, "normalized": True}),
                           "<|user|>on", [USER, ON]),
    "a line break": (tokenizer_json(more={"content": "\n\n"}), "on\n\non", [ON, USER, ON])}


@pytest.mark.parametrize("found, text, ids", FOLLOWED.values(), ids=FOLLOWED)
@pytest.mark.parametrize("beside", [{}, two_files()], ids=["alone", "beside vocab.json"])
def test_tokenizer_json_counts(tmp_path, found, text, ids, beside):
    vocabulary, said = read(tmp_path, beside | {"tokenizer.json": found})
    assert vocabulary.encode(text).tolist() == ids and "tokens of tokenizer.json" in said
    again = vocabulary_of(json.loads(json.dumps(vocabulary.description())))
    assert again.encode(text).tolist() == ids and again.description() == vocabulary.description()


DIGITS = {"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated"}
NOT_FOLLOWED = {
    "pre_tokenizer is {'type': 'Split'": {
        "pre_tokenizer": sequence("pretokenizers", DIGITS, LEVEL)},
    "pre_tokenizer is {'type': 'Digits'": {"pre_tokenizer": {"type": "Digits"}},
    "pre_tokenizer is {'type': 'ByteLevel'": {"pre_tokenizer": LEVEL | {"use_regex": False}},
    "normalizer is {'type': 'NFC'}": {"normalizer": {"type": "NFC"}},
    "normalizer is {'type': 'Prepend'": {
        "normalizer": sequence("normalizers", {"type": "Prepend"})},
    "post_processor.single is": {"post_processor": AROUND},
    "post_processor is {'type': 'RobertaProcessing'": {"post_processor": {
        "type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}},
    "post_processor is {'type': 'BertProcessing'": {"post_processor": {
        "type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}},
    "post_processor is {'type': 'TemplateP": {
        "post_processor": sequence("processors", BEGIN, BEGIN)},
    "decoder is {'type': 'WordPiece'}": {"decoder": {"type": "WordPiece"}},
    "model.ignore_merges is True": {"model": {"ignore_merges": True}},
    "model.byte_fallback is True": {"model": {"byte_fallback": True}},
    "model.end_of_word_suffix is '</w>'": {"model": {"end_of_word_suffix": "</w>"}},
    "model.dropout is 0.1": {"model": {"dropout": 0.1}},
    "model.type is 'Unigram'": {"model": {"type": "Unigram"}},
    "lstrip of the special token '<|user|>'": {"more": {"lstrip": True}},
    "rstrip of the special token '<|user|>'": {"more": {"rstrip": True}},
    "single_word of the special token '<|user|>'": {"more": {"single_word": True}}}


@pytest.mark.parametrize("said, parts", NOT_FOLLOWED.items(), ids=NOT_FOLLOWED)
def test_what_is_not_followed_is_named(tmp_path, said, parts):
    vocabulary, note = read(tmp_path, two_files() | {"tokenizer.json": tokenizer_json(**parts)})
    assert isinstance(vocabulary, Numbers) and said in note and "as numbers" in note


TOLD = {"content": "<s>", "special": True, "lstrip": False}
CONFIGS = {
    "plain": ({}, "on<s>", [ON, IDS["<"], IDS["s"], IDS[">"]]),
    "space": ({"add_prefix_space": True}, "on", [SPACE_O, N]),
    "begin": ({"add_bos_token": True, "bos_token": "<s>"}, "on<s>", [0, ON, 0]),
    "begin as a dict": ({"add_bos_token": True, "bos_token": TOLD}, "on", [0, ON]),
    "both": ({"add_bos_token": True, "bos_token": "<s>", "add_prefix_space": True}, "on",
             [0, SPACE_O, N]),
    "begin, not added": ({"add_bos_token": False, "bos_token": "<s>"}, "<s>on", [0, ON]),
    "other names": ({"pad_token": "<fill>"}, "<fill>on", [2, ON]),
    "more": ({"additional_special_tokens": ["<fill>"]}, "<fill>on", [2, ON]),
    "more, newer": ({"extra_special_tokens": {"x": "<fill>"}}, "<fill>on", [2, ON]),
    "with numbers": ({"added_tokens_decoder": {"0": TOLD, str(USER): {"content": "<|user|>"}}},
                     "<|user|>on<s>", [USER, ON, 0])}


@pytest.mark.parametrize("config, text, ids", CONFIGS.values(), ids=CONFIGS)
def test_tokenizer_config_beside_two_files(tmp_path, config, text, ids):
    vocabulary, _ = read(tmp_path, two_files(**config))
    assert vocabulary.encode(text).tolist() == ids


def test_the_map_of_older_folders(tmp_path):
    older = {"special_tokens_map.json": {"pad_token": {"content": "<fill>"}}}
    assert read(tmp_path, two_files() | older)[0].encode("<fill>").tolist() == [2]
    newer = two_files(added_tokens_decoder={"0": TOLD})         # then the map is not read
    assert len(read(tmp_path, newer | older)[0].encode("<fill>")) == 6


@pytest.mark.parametrize("config, said", [
    ({"add_eos_token": True}, "add_eos_token is True"),
    ({"split_special_tokens": True}, "split_special_tokens is True"),
    ({"tokenizer_class": "RobertaTokenizer"}, "tokenizer_class is 'RobertaTokenizer'"),
    ({"add_bos_token": True}, "add_bos_token is True, but bos_token, '<|endoftext|>', is no tok"),
    ({"mask_token": {"content": "<fill>", "lstrip": True}}, "lstrip of the special token '<fi")])
def test_configs_that_are_not_followed_are_named(tmp_path, config, said):
    vocabulary, note = read(tmp_path, two_files(**config))
    assert isinstance(vocabulary, Numbers) and said in note and "as numbers" in note


@pytest.mark.parametrize("config, said", [
    ({"add_bos_token": True}, "add_bos_token is True, but tokenizer.json counts"),
    ({"add_prefix_space": True}, "add_prefix_space is True, but tokenizer.json counts"),
    ({"add_eos_token": True}, "add_eos_token is True, but tokenizer.json counts"),
    ({"pad_token": "[PAD]"}, "pad_token of the tokenizer, '[PAD]', is none of its tokens"),
    ({"add_bos_token": False, "add_prefix_space": False}, None)])
def test_what_tokenizer_json_says_otherwise_is_told(tmp_path, config, said):
    vocabulary, note = read(tmp_path, {"tokenizer.json": tokenizer_json(),
                                       "tokenizer_config.json": config})
    assert vocabulary.encode("on").tolist() == [ON]
    assert note == f"tokenizer: {len(IDS)} tokens of tokenizer.json" if said is None \
        else said in note


@pytest.mark.parametrize("files", [
    two_files(added_tokens_decoder={str(USER): {"content": "<|user|>"}}),
    two_files() | {"added_tokens.json": {"<|user|>": USER}},
    {"tokenizer.json": tokenizer_json(more={})}])
def test_a_tokenizer_that_was_enlarged_and_its_model_was_not(tmp_path, files):
    vocabulary, note = read(tmp_path, files, size=len(IDS))
    assert vocabulary.encode("on").tolist() == [ON]
    assert f"the added token '<|user|>' has number {USER}, but the model {USER} tokens" in note


@pytest.mark.parametrize("files, said", [
    ({"tokenizer_config.json": {"bos_token": 3}}, "3 is no special token"),
    ({"tokenizer_config.json": {"add_bos_token": "yes"}}, "add_bos_token is 'yes': a bool was"),
    ({"tokenizer_config.json": {"added_tokens_decoder": {"x": "<s>"}}}, "x is '<s>': {number: tok"),
    ({"tokenizer_config.json": {"additional_special_tokens": 3}}, "do not fit together"),
    ({"added_tokens.json": {"<|user|>": "1"}}, "'<|user|>' has number '1': a whole number"),
    ({"tokenizer.json": tokenizer_json(more={"id": None})}, "'<|user|>' has number None"),
    ({"tokenizer.json": tokenizer_json(post_processor=BEGIN | {"special_tokens": {}})},
     "do not fit together"),
    ({"tokenizer.json": tokenizer_json() | {"added_tokens": 3}}, "do not fit together"),
    ({"config.json": {"eos_token_id": "2"}}, "eos_token_id is '2': a token, or a list of tokens"),
    ({"config.json": {"eos_token_id": [True]}}, "a token, or a list"),
    ({"generation_config.json": {"bos_token_id": 1.0}}, "bos_token_id is 1.0: a token")])
def test_broken_files_are_refused_in_a_line(tmp_path, files, said):
    with pytest.raises(InteropError, match=re.escape(said)) as raised:
        read(tmp_path, two_files() | files)
    assert "\n" not in str(raised.value)
