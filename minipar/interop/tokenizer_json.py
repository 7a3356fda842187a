"""Read tokenizer.json, the file that describes any tokenizer of Hugging Face's library.

                    what it does                                what minipar knows
    normalizer      changes the text                            none
    pre_tokenizer   cuts the text into words                    GPT-2's, ByteLevel; none: characters
    model           words → tokens                              BPE of bytes, or of characters
    post_processor  adds tokens around the text                 one token before the text
    decoder         tokens → text                               ByteLevel
    added_tokens    are cut out of the text before all this     those of a BPE of bytes

Any other part among these raises NotFollowed, which names the part.  The decoder of a BPE of
characters, truncation and padding are not read.
"""

from pathlib import Path
from typing import Any, NoReturn

from ..data import ByteBPE, CharacterVocabulary
from .safetensors import InteropError, read_json
from .special_tokens import NotFollowed, SpecialTokens

UNLIKE_GPT2 = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
               "ignore_merges")


def read_tokenizer_json(path: Path, size: int,
                        named: SpecialTokens) -> ByteBPE | CharacterVocabulary:
    """The tokenizer of tokenizer.json.  Raises NotFollowed, or InteropError for a broken file.

    `named` are the special tokens that tokenizer_config.json names.
    """
    found = read_json(path)
    try:
        return _read(found, size, named)
    except (NotFollowed, InteropError):
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InteropError(f"{path}: its parts do not fit together ({error}): get it again") \
            from error


def _read(found: dict[str, Any], size: int,
          named: SpecialTokens) -> ByteBPE | CharacterVocabulary:
    model = found.get("model") or {}
    for key in UNLIKE_GPT2:
        if model.get(key):
            refuse(f"model.{key}", model[key])
    if model.get("type") != "BPE":
        refuse("model.type", model.get("type"))
    for part in steps(found.get("normalizer"), "normalizers"):
        refuse("normalizer", part)
    cuts = steps(found.get("pre_tokenizer"), "pretokenizers")
    if not cuts:
        return _read_characters(found, model, size)
    for cut in cuts:
        if cut.get("type") != "ByteLevel" or not cut.get("use_regex", True) or len(cuts) > 1:
            refuse("pre_tokenizer", cut)
    for part in steps(found.get("decoder"), "decoders"):
        if part.get("type") != "ByteLevel":
            refuse("decoder", part)
    added = {named.text_of(token): token["id"] for token in found.get("added_tokens") or []}
    added = named.fitting(added, size)
    ids = model["vocab"] | added
    if sorted(ids.values()) != [*range(len(ids))]:
        raise ValueError("its numbers are not 0, 1, 2, … each once")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return ByteBPE(sorted(ids, key=ids.__getitem__), merges, size, added | named.among(ids),
                   prefix=_prefix(found), prefix_space=bool(cuts[0].get("add_prefix_space")))


def _read_characters(found: dict[str, Any], model: dict[str, Any],
                     size: int) -> CharacterVocabulary:
    """A vocabulary of characters: each is a token, and nothing is merged."""
    vocab = model["vocab"]
    if model["merges"] or model.get("unk_token") or any(len(token) != 1 for token in vocab):
        refuse("pre_tokenizer", None)
    for key in ("added_tokens", "post_processor"):
        if found.get(key):
            refuse(key, found[key])
    if sorted(vocab) != sorted(vocab, key=vocab.get) or len(vocab) != size:
        raise ValueError("its characters are not in order, each once")
    return CharacterVocabulary("".join(sorted(vocab)))


def _prefix(found: dict[str, Any]) -> int | None:
    """The token that post_processor puts before a text; None if it adds none."""
    prefix = None
    for part in steps(found.get("post_processor"), "processors"):
        if part.get("type") == "ByteLevel":         # changes offsets alone
            continue
        if part.get("type") != "TemplateProcessing" or prefix is not None:
            refuse("post_processor", part)
        *before, text = part["single"]
        ids = [i for piece in before if "SpecialToken" in piece
               for i in part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]]
        if "Sequence" not in text or len(ids) != len(before) or len(ids) > 1:
            refuse("post_processor.single", part["single"])
        prefix = ids[0] if ids else None
    return prefix


def steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a part: the steps of a Sequence under the key `inner`, or the part alone."""
    if part is None:
        return []
    if part.get("type") == "Sequence":
        return [step for each in part[inner] for step in steps(each, inner)]
    return [part]


def refuse(key: str, value: Any) -> NoReturn:
    """Raise NotFollowed about the value of a key."""
    raise NotFollowed(f"tokenizer.json: {key} is {value!r:.80}, which is not followed here")
