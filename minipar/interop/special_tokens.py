"""Special tokens: what the files beside a model say about them, by text and by number.

    config.json, generation_config.json     bos_token_id, eos_token_id (one or a list), pad_token_id
    tokenizer_config.json                   bos_token, eos_token, …, and what is put before a text
    special_tokens_map.json                 the same names, in older folders

An answer ends with any of the end tokens that one of these files names.
"""

from pathlib import Path
from typing import Any

from ..data import Markers
from .config import Config
from .safetensors import InteropError

NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token",
         "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("lstrip", "rstrip", "single_word")
UNLIKE_GPT2 = ("split_special_tokens", "do_lower_case")


class NotFollowed(ValueError):
    """A tokenizer does what minipar's do not: then the model reads and writes numbers."""


class SpecialTokens:
    """The special tokens in tokenizer_config.json and special_tokens_map.json of a folder.

    `names` is {"eos_token": "</s>", …}.  `tokens` are all special tokens, `added` those whose
    number is given.  `not_followed` says what minipar does not do, `notes` what was left out.
    Raises InteropError.
    """

    def __init__(self, folder: Path):
        self.config = Config.read_if_there(folder, "tokenizer_config.json")
        decoder = self.config.inner("added_tokens_decoder")     # newer folders have this
        older = {} if decoder.values else \
            Config.read_if_there(folder, "special_tokens_map.json").values
        self.not_followed = [f"tokenizer_config.json: {key} is True, which is not followed here"
                             for key in UNLIKE_GPT2 if self.config.get(key, bool)]
        self.notes: list[str] = []
        self.names: dict[str, str] = {}
        self.tokens: list[str] = []
        for values in (older, self.config.values):
            self.names |= {name: self.text_of(values[name]) for name in NAMES if values.get(name)}
            for key in LISTS:
                more = values.get(key) or []
                more = more.values() if isinstance(more, dict) else more
                self.tokens += map(self.text_of, more)
        self.added: dict[str, int] = {}
        for i, token in decoder.values.items():
            if not i.isdecimal():
                decoder.refuse(i, "{number: token} was expected")
            self.added[self.text_of(token)] = int(i)
        self.tokens += [*self.names.values(), *self.added]

    def text_of(self, token: Any) -> str:
        """The text of a token, which files give alone or with flags.  Raises InteropError."""
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str):
            raise InteropError(f"{self.config.path.parent}: {token!r:.60} is no special token")
        self.not_followed += [f"{flag} of the special token {text!r} is not followed here"
                              for flag in FLAGS if isinstance(token, dict) and token.get(flag)]
        return text

    def fitting(self, added: dict[str, int], size: int) -> dict[str, int]:
        """The added tokens that a model of `size` tokens has; notes each of the others."""
        for token, i in added.items():
            if type(i) is not int:
                raise InteropError(f"{self.config.path.parent}: the added token {token!r} has "
                                   f"number {i!r:.40}: a whole number was expected")
        self.notes += [f"the added token {token!r} has number {i}, but the model {size} tokens: "
                       "left out" for token, i in added.items() if i >= size]
        return {token: i for token, i in added.items() if i < size}

    def among(self, ids: dict[str, int]) -> dict[str, int]:
        """The special tokens that have a number in `ids`, with their numbers."""
        return {token: ids[token] for token in self.tokens if token in ids}


def read_markers(folder: Path, size: int, names: dict[str, str], ids: dict[str, int],
                 default: Markers) -> tuple[Markers, list[str]]:
    """(the markers of a model of `size` tokens, a line on each number that is none of its tokens).

    `names` are the tokenizer's names of special tokens, `ids` the numbers of tokens.  If no file
    names an end token, those of `default` count.  Raises InteropError.
    """
    notes: list[str] = []
    config, generation = (Config.read_if_there(folder, f"{name}.json")
                          for name in ("config", "generation_config"))

    def read(config: Config, key: str) -> list[int]:
        found = config.values.get(key)
        found = found if isinstance(found, list) else [] if found is None else [found]
        if any(type(i) is not int for i in found):
            config.refuse(key, "a token, or a list of tokens, was expected")
        notes.extend(f"{config.path.name}: {key} {i} is no token of this model: left out"
                     for i in found if i >= size)
        return [i for i in found if 0 <= i < size]          # -1 stands for none in older files

    def named(key: str) -> list[int]:
        return [i for i in [ids.get(names.get(key, ""), size)] if i < size]

    def first(key: str) -> int | None:
        found = [*read(config, f"{key}_id"), *read(generation, f"{key}_id"), *named(key)]
        return found[0] if found else None

    end = tuple(dict.fromkeys(read(config, "eos_token_id")))
    more = dict.fromkeys([*read(generation, "eos_token_id"), *named("eos_token")])
    markers = Markers(first("bos_token"), end, tuple(i for i in more if i not in end),
                      first("pad_token"))
    if not markers.ends:
        markers = Markers(markers.begin, default.end, (), markers.pad)
    return markers, notes


def marker_entries(markers: Markers) -> tuple[dict[str, Any], dict[str, Any]]:
    """(entries of config.json about markers, those of generation_config.json, {} if not needed)."""
    def entries(ends: tuple[int, ...]) -> dict[str, Any]:
        return {"bos_token_id": markers.begin, "pad_token_id": markers.pad,
                "eos_token_id": [*ends] if len(ends) > 1 else ends[0] if ends else None}
    return entries(markers.end), entries(markers.ends) if markers.more_ends else {}
