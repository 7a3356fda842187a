"""The tokenizer of a folder: GPT-2's two files, or a tokenizer.json that describes the same.

    vocab.json, merges.txt, added_tokens.json       all that GPT-2's tokenizer needs
    tokenizer.json                                  one file for this or any other tokenizer
    tokenizer_config.json                           written for transformers: which class reads it

Without a tokenizer that minipar knows, a model reads and writes tokens as numbers.
"""

import json
from pathlib import Path
from typing import Any

from ..data import ByteBPE, CharacterVocabulary, Numbers, Vocabulary
from .safetensors import InteropError, read_json

TWO = "vocab.json", "merges.txt"
TOKENIZER_FILES = *TWO, "added_tokens.json", "tokenizer.json", "tokenizer_config.json"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def read_tokenizer(folder: Path, size: int) -> tuple[Vocabulary, str]:
    """The tokenizer of a folder for `size` ids, and a line on it.  Raises InteropError."""
    try:
        if all((folder / name).exists() for name in TWO):
            added = folder / "added_tokens.json"
            found = ByteBPE.from_files(*(folder / name for name in TWO), size,
                                       read_json(added) if added.exists() else None)
            return found, f"tokenizer: {len(found.tokens):,} tokens of vocab.json"
        if (folder / "tokenizer.json").exists():
            return read_tokenizer_json(folder / "tokenizer.json", size)
    except InteropError:
        raise
    except ValueError as error:
        raise InteropError(str(error)) from error
    return Numbers(size), ("no vocab.json and merges.txt, so this model reads and writes tokens as "
                           "numbers: \"17 4 25\"")


def read_tokenizer_json(path: Path, size: int) -> tuple[Vocabulary, str]:
    """The tokenizer of tokenizer.json, if it is GPT-2's kind, or of characters; else numbers."""
    found = read_json(path)
    model, cut = found.get("model") or {}, found.get("pre_tokenizer")
    normalizer = found.get("normalizer")
    is_bpe = model.get("type") == "BPE" and not normalizer and not any(
        model.get(key) for key in ("dropout", "unk_token", "continuing_subword_prefix",
                                   "end_of_word_suffix", "byte_fallback", "ignore_merges"))
    vocab, merges = model.get("vocab"), model.get("merges")
    if is_bpe and isinstance(vocab, dict) and isinstance(merges, list):
        if cut is None and not merges and sorted(vocab) == [*vocab] and len(vocab) == size:
            return CharacterVocabulary("".join(vocab)), f"tokenizer: {size} characters"
        if isinstance(cut, dict) and {**BYTE_LEVEL, **cut, "trim_offsets": 0} == \
                {**BYTE_LEVEL, "trim_offsets": 0}:
            added = {token["content"]: token["id"] for token in found.get("added_tokens") or []}
            ids = vocab | added
            if sorted(ids.values()) != [*range(len(ids))]:
                raise InteropError(f"{path}: its numbers are not 0, 1, 2, … each once")
            pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
            try:
                return ByteBPE(sorted(ids, key=ids.__getitem__), pairs, size, added), \
                    f"tokenizer: {len(ids):,} tokens of {path.name}"
            except ValueError as error:
                raise InteropError(f"{path}: {error}") from error
    return Numbers(size), (f"{path.name} is not GPT-2's kind of tokenizer, so this model reads and "
                           "writes tokens as numbers: \"17 4 25\"")


def tokenizer_files(vocabulary: Vocabulary) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a tokenizer, by name, and what config.json says of its tokens."""
    if isinstance(vocabulary, ByteBPE):
        ids = {token: i for i, token in enumerate(vocabulary.tokens)}
        last = vocabulary.special[0] if vocabulary.special else None
        about = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False,
                 "model_max_length": 10**9, **dict.fromkeys(
                     ("bos_token", "eos_token", "unk_token"), last)}
        files = {"vocab.json": as_json(ids), "tokenizer_config.json": as_json(about),
                 "merges.txt": "\n".join(["#version: 0.2", *vocabulary.merges, ""]).encode()}
        more = {token: ids[token] for token in vocabulary.special[1:]}
        if more:
            files["added_tokens.json"] = as_json(more)
        end = None if last is None else ids[last]
        return files, {"bos_token_id": end, "eos_token_id": end}
    if isinstance(vocabulary, CharacterVocabulary):
        vocab = {character: i for i, character in enumerate(vocabulary.characters)}
        found = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                 "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
        about = {"tokenizer_class": "PreTrainedTokenizerFast"}
        return {"tokenizer.json": as_json(found), "tokenizer_config.json": as_json(about)}, {}
    return {}, {}


def as_json(values: dict[str, Any]) -> bytes:
    """A JSON file."""
    return json.dumps(values, ensure_ascii=False).encode()
