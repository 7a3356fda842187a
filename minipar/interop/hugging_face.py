"""Read a GPT from a folder of Hugging Face's files, and write a GPT as such a folder.

    config.json  ─▶ layout ─▶ GPTConfig, table of weights
    *.safetensors ───────────▶ names and shapes compared with the table ─▶ parameters

All names and shapes are compared with the table before any parameter is made.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..atomic_files import replace_files
from ..data import Numbers, Vocabulary
from ..nn import GPT, GPTConfig
from . import gpt2, llama
from .config import Config
from .layout import Renamed, check_names
from .safetensors import INDEX, STORED, WHOLE, InteropError, open_safetensors
from .safetensors_writer import LARGEST_FILE, model_files
from .tokenizer import TOKENIZER_FILES, read_tokenizer, tokenizer_files

LAYOUTS: dict[str, ModuleType] = {"gpt2": gpt2, "llama": llama}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


class Source(NamedTuple):
    """An opened model: its sizes and layout, and its arrays, not read yet."""

    sizes: GPTConfig
    layout: ModuleType
    arrays: Renamed

    @property
    def dtype(self) -> str:
        """The dtype in which all numbers of the file are exact: "float64" or "float32"."""
        kinds = {entry.dtype for entry in self.arrays.file.entries.values()}
        return "float64" if "F64" in kinds else "float32"

    def parameters(self, dtype: Any = None) -> dict[str, np.ndarray]:
        """Every parameter by its name here."""
        return {weight.name: weight.from_file(self.arrays).astype(dtype or self.dtype, copy=False)
                for weight in self.layout.weights(self.sizes)}


def open_pretrained(folder: str | Path) -> Source:
    """The model in a folder, opened.  Raises InteropError if its names or shapes do not fit."""
    folder = Path(folder)
    if folder.is_file():
        file = open_safetensors(folder)         # a pickle or a broken file says so first
        raise InteropError(f"{file.path} is one file: give its folder, with config.json")
    file, config = open_safetensors(folder), Config.read(folder)
    layout = LAYOUTS[config.expect("model_type", *LAYOUTS)]
    try:
        sizes, is_tied = layout.read_config(config)
    except InteropError:
        raise
    except ValueError as error:             # of GPTConfig, RopeConfig
        raise InteropError(f"{config.path}: {error}") from error
    names: dict[str, str] = {}
    for key in file:
        name = layout.full_name(key)
        if name in names:
            raise InteropError(f"{file.path}: {key!r} and {names[name]!r} are the same weight: "
                               "leave one out")
        if name is not None:
            names[name] = key
    arrays = Renamed(file, names)
    for key in names.values():
        if file.entries[key].dtype not in FLOATS:
            raise InteropError(f"{file.path}: {key!r} is {file.entries[key].dtype}, but weights "
                               f"are one of {', '.join(FLOATS)}: give a model without codes")
    if sizes.num_layers > len(file):
        raise InteropError(f"{config.path} asks for {sizes.num_layers:,} layers, but {file.path} "
                           f"has {len(file):,} arrays: mend the number of layers")
    if is_tied and layout.HEAD in arrays and layout.EMBEDDING in arrays:
        if np.array_equal(arrays[layout.HEAD], arrays[layout.EMBEDDING]):
            del arrays.names[layout.HEAD]       # a copy of the embedding
        else:
            sizes = replace(sizes, tied=False)  # they differ, whatever config.json says
    check_names(layout.weights(sizes), arrays.shapes(), str(file.path))
    return Source(sizes, layout, arrays)


def load_pretrained(folder: str | Path, dtype: Any = None) -> tuple[GPT, Vocabulary]:
    """The model and the tokenizer of a folder; without a known tokenizer, tokens are numbers.

    `dtype` is that of the parameters: by default float64 if the file has such arrays, else float32.
    Raises InteropError, which names file, key and value, for what minipar does not know.
    """
    source = open_pretrained(folder)
    model = GPT(source.sizes).to_empty(dtype or source.dtype)
    model.load_state_dict(source.parameters(dtype))
    return model, read_tokenizer(Path(folder), source.sizes.vocab_size)[0]


def layout_of(sizes: GPTConfig) -> ModuleType:
    """The layout that knows such a GPT.  Raises InteropError."""
    if sizes.experts is not None:
        raise InteropError(f"no layout has experts: those of {', '.join(LAYOUTS)} are dense")
    parts = {"norm": sizes.norm, "mlp": sizes.mlp,
             "positions": "rotary" if sizes.rope else "learned", "biases": sizes.bias}
    for layout in LAYOUTS.values():
        if parts == layout.PARTS:
            return layout
    known = "; ".join(f"{name}'s has {in_words(layout.PARTS)}" for name, layout in LAYOUTS.items())
    raise InteropError(f"no layout has {in_words(parts)} together: {known}")


def in_words(parts: Mapping[str, Any]) -> str:
    """The parts of a GPT, in words."""
    return (f"norm {parts['norm']}, mlp {parts['mlp']}, {parts['positions']} positions and "
            f"{'' if parts['biases'] else 'no '}biases")


def to_arrays(sizes: GPTConfig, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a file, by their names there.  Raises InteropError."""
    return {key: array for weight in layout_of(sizes).weights(sizes)
            for key, array in weight.to_file(parameters[weight.name]).items()}


def save_pretrained(folder: str | Path, model: GPT, vocabulary: Vocabulary | None = None,
                    state: Mapping[str, np.ndarray] | None = None, dtype: str | None = None,
                    largest: int = LARGEST_FILE) -> list[Path]:
    """Write a model so that transformers reads it; return the paths of its files.

    The layout follows from the model's parts.  `state` are the whole parameters of a model that a
    strategy has sharded.  `dtype` is one of FLOATS; None keeps the parameters' own.  A file holds
    at most `largest` bytes of arrays, or a single larger array.  Raises InteropError for a model
    that no layout knows.
    """
    sizes, folder = model.config, Path(folder)
    layout = layout_of(sizes)
    described = layout.write_config(sizes)
    arrays = to_arrays(sizes, model.state_dict() if state is None else state)
    files, about_tokens = tokenizer_files(
        Numbers(sizes.vocab_size) if vocabulary is None else vocabulary)
    number_format = STORED[dtype][1] if dtype else None
    kind = number_format.name if number_format else np.dtype(
        STORED[dtype][0] if dtype else next(iter(arrays.values())).dtype).name
    described |= {"architectures": [layout.ARCHITECTURE], "tie_word_embeddings": sizes.tied,
                  "torch_dtype": kind, **about_tokens}
    files = {"config.json": (json.dumps(described, indent=2) + "\n").encode(), **files}
    writes: dict[str, Callable[[BinaryIO], Any]] = {
        name: lambda file, content=content: file.write(content) for name, content in files.items()}
    writes |= model_files(arrays, dtype, largest)
    replace_files({folder / name: write for name, write in writes.items()})
    for name in {WHOLE, INDEX, *TOKENIZER_FILES} - writes.keys():
        (folder / name).unlink(missing_ok=True)         # of a different model that was here
    return [folder / name for name in writes]
