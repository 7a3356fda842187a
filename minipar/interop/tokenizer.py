"""The tokenizer of a folder: tokenizer.json, or GPT-2's two files, and the special tokens.

    tokenizer.json                                  is used if it is there (`tokenizer_json.py`)
    vocab.json, merges.txt, added_tokens.json       GPT-2's tokenizer, used otherwise
    tokenizer_config.json, …                        special tokens (`special_tokens.py`)

Without a tokenizer that minipar knows, a model reads and writes tokens as numbers.
"""

import json
from pathlib import Path
from typing import Any

from ..data import ByteBPE, CharacterVocabulary, Numbers, Vocabulary
from ..data.byte_bpe import END_OF_TEXT
from .safetensors import InteropError, read_json
from .special_tokens import NotFollowed, SpecialTokens, marker_entries, read_markers
from .tokenizer_json import read_tokenizer_json

GPT2_FILES = "vocab.json", "merges.txt"
TOKENIZER_FILES = (*GPT2_FILES, "added_tokens.json", "tokenizer.json", "tokenizer_config.json",
                   "special_tokens_map.json", "generation_config.json")
GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast")


def read_tokenizer(folder: Path, size: int) -> tuple[Vocabulary, str]:
    """(the tokenizer of a folder for `size` ids, a text of notes on it).  Raises InteropError."""
    found: Vocabulary
    try:
        special = SpecialTokens(folder)
        try:
            found, notes = read_known(folder, size, special)
            ids = found.ids if isinstance(found, ByteBPE) else {}
        except NotFollowed as error:
            found, ids = Numbers(size), special.added | added_numbers(folder)
            notes = [f"{error}, so this model reads and writes tokens as numbers: \"17 4 25\""]
    except InteropError:
        raise
    except ValueError as error:
        raise InteropError(str(error)) from error
    except (TypeError, AttributeError, KeyError) as error:
        raise InteropError(f"{folder}: the tokenizer's files do not fit together ({error!r:.80}): "
                           "get them again") from error
    found.markers, more = read_markers(folder, size, special.names, ids, found.markers)
    return found, "\n".join([*notes, *more])


def read_known(folder: Path, size: int,
               special: SpecialTokens) -> tuple[ByteBPE | CharacterVocabulary, list[str]]:
    """(the tokenizer, notes on it).  Raises NotFollowed, ValueError and InteropError."""
    config, path = special.config, folder / "tokenizer.json"
    if has_json := path.exists():
        found = read_tokenizer_json(path, size, special)
    elif all((folder / name).exists() for name in GPT2_FILES):
        found = read_two_files(folder, size, special)
    else:
        raise NotFollowed("no tokenizer.json, or vocab.json and merges.txt")
    if special.not_followed:
        raise NotFollowed(special.not_followed[0])
    if isinstance(found, CharacterVocabulary):
        return found, [f"tokenizer: {size} characters"]
    notes = [f"tokenizer: {len(found.tokens):,} tokens of "
             f"{path.name if has_json else 'vocab.json'}", *special.notes]
    notes += [f"{name} of the tokenizer, {token!r}, is none of its tokens: left out"
              for name, token in special.names.items() if token not in found.ids]
    for key, followed in (("add_prefix_space", found.prefix_space), ("add_eos_token", False),
                          ("add_bos_token", found.prefix is not None)):
        if config.get(key, bool, followed) != followed:
            notes.append(f"tokenizer_config.json: {key} is {not followed}, but tokenizer.json "
                         "counts, which says otherwise")
    return found, notes


def added_numbers(folder: Path) -> dict[str, int]:
    """The numbers of the special tokens of a tokenizer that is not followed, by their texts."""
    path = folder / "tokenizer.json"
    added = read_json(path).get("added_tokens") or [] if path.exists() else []
    return {token["content"]: token["id"] for token in added if type(token["id"]) is int}


def read_two_files(folder: Path, size: int, special: SpecialTokens) -> ByteBPE:
    """The tokenizer of vocab.json and merges.txt.  Raises NotFollowed and ValueError."""
    config, more = special.config, folder / "added_tokens.json"
    vocab = read_json(folder / GPT2_FILES[0])
    kind = config.get("tokenizer_class", str, GPT2_CLASSES[0])
    if kind not in GPT2_CLASSES:
        raise NotFollowed(f"tokenizer_config.json: tokenizer_class is {kind!r}, not GPT-2's")
    if config.get("add_eos_token", bool):
        raise NotFollowed("tokenizer_config.json: add_eos_token is True, which is not followed "
                          "here")
    added = special.fitting((read_json(more) if more.exists() else {}) | special.added, size)
    added |= special.among(vocab)
    prefix = None
    if config.get("add_bos_token", bool):
        begin = special.names.get("bos_token", END_OF_TEXT)
        prefix = (vocab | added).get(begin)
        if prefix is None:
            raise NotFollowed("tokenizer_config.json: add_bos_token is True, but bos_token, "
                              f"{begin!r}, is no token")
    return ByteBPE.from_files(*(folder / name for name in GPT2_FILES), size, added, prefix=prefix,
                              prefix_space=config.get("add_prefix_space", bool, False))


def tokenizer_files(vocabulary: Vocabulary) -> tuple[dict[str, bytes], dict[str, Any]]:
    """(the files of a tokenizer, by name, the entries of config.json about its tokens)."""
    entries, generation = marker_entries(vocabulary.markers)
    files = {"generation_config.json": as_json(generation)} if generation else {}
    if isinstance(vocabulary, ByteBPE):
        about = named_tokens(vocabulary)
        files |= {"vocab.json": as_json(vocabulary.ids), "tokenizer_config.json": as_json(about),
                  "merges.txt": "\n".join(["#version: 0.2", *vocabulary.merges, ""]).encode()}
        more = {token: vocabulary.ids[token] for token in vocabulary.special
                if token not in about.values()}
        if more:
            files["added_tokens.json"] = as_json(more)
    if isinstance(vocabulary, CharacterVocabulary):
        vocab = {character: i for i, character in enumerate(vocabulary.characters)}
        found = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                 "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
        files |= {"tokenizer.json": as_json(found), "tokenizer_config.json": as_json(
            {"tokenizer_class": "PreTrainedTokenizerFast"})}
    return files, entries


def named_tokens(vocabulary: ByteBPE) -> dict[str, Any]:
    """The tokenizer_config.json of a tokenizer: its class and its special tokens by name."""
    def special(*ids: int | None) -> str | None:
        texts = [vocabulary.tokens[i] for i in ids
                 if i is not None and i < len(vocabulary.tokens)]
        return next((text for text in texts if text in vocabulary.special), None)

    markers, prefix = vocabulary.markers, vocabulary.prefix
    begin, end = special(prefix, markers.begin), special(*markers.ends)
    about: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer",
                             "add_prefix_space": vocabulary.prefix_space,
                             "model_max_length": 10**9, "bos_token": begin, "eos_token": end,
                             "unk_token": end or begin}
    if pad := special(markers.pad):
        about["pad_token"] = pad
    return about if prefix is None else about | {"add_bos_token": True}


def as_json(values: dict[str, Any]) -> bytes:
    """The bytes of a JSON file."""
    return json.dumps(values, ensure_ascii=False).encode()
