"""A model in a folder, as Hugging Face keeps it.

    config.json                      sizes and kinds
    model.safetensors                the weights; or several files and …
    model.safetensors.index.json     … which of them has which weight
    vocab.json, merges.txt           GPT-2's tokenizer, if there

Nothing is a pickle, so reading runs no program.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_files import write_text
from ..data import ByteBPE, Numbers, Vocabulary
from ..nn import GPT
from .gpt2 import GPT2Layout
from .layout import Arrays, BadConfig, Layout, read_weights, written_weights
from .llama import LlamaLayout
from .safetensors import read_safetensors, write_safetensors

LAYOUTS: dict[str, Layout] = {layout.model_type: layout for layout in (GPT2Layout(), LlamaLayout())}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def load_pretrained(folder: str | Path, dtype: Any = np.float32) -> tuple[GPT, Vocabulary]:
    """The model and the tokenizer of a folder; without a known tokenizer, tokens are numbers.

    Raises ValueError for what minipar cannot follow, naming file, key and value; and OSError.
    """
    folder = Path(folder)
    config = read_config(folder)
    layout = LAYOUTS[config["model_type"]]
    arrays = read_arrays(folder)
    sizes = layout.read_config(config)
    if "lm_head.weight" in arrays and sizes.tied:
        sizes = untied_if_different(layout, arrays, sizes)
    model = GPT(sizes).to_empty(dtype)
    try:
        read_weights(layout, model, arrays)
        return model, read_tokenizer(folder, sizes.vocab_size)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a known layout.  Raises ValueError."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / CONFIG} is no JSON ({error})") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in LAYOUTS:
        raise BadConfig(f"{folder / CONFIG} has model_type={kind!r}: known are "
                        f"{', '.join(LAYOUTS)}")
    return config


def read_arrays(folder: Path) -> Arrays:
    """The arrays of all the folder's files, each read when it is used.  Raises ValueError."""
    if (folder / WEIGHTS).exists():
        return read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        pickled = sorted(file.name for kind in PICKLES for file in folder.glob(kind))
        if pickled:
            raise ValueError(f"{folder / pickled[0]} is a pickle, which can run any program when "
                             "it is read: save the model with safe_serialization=True, and give "
                             "that folder")
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {INDEX}: give the folder of a model")
    try:
        files = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        parts = {name: read_safetensors(folder / Path(name).name) for name in set(files.values())}
        return {name: parts[file][name] for name, file in files.items()}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / INDEX}: expected {{\"weight_map\": {{weight: file}}}}, of "
                         f"weights that are there ({error})") from error


def untied_if_different(layout: Layout, arrays: Arrays, sizes: Any) -> Any:
    """The sizes, untied if the file's head is not its embedding, whatever config.json says."""
    embedding = next(weight.sources[0] for weight in layout.weights(sizes)
                     if weight.name == "wte.weight")
    read = arrays.get(layout.prefix + embedding) or arrays.get(embedding)
    if read is None or np.array_equal(arrays["lm_head.weight"](), read()):
        return sizes
    return replace(sizes, tied=False)


def read_tokenizer(folder: Path, size: int) -> Vocabulary:
    """The tokenizer of a folder: GPT-2's by its two files; else numbers."""
    files = folder / "vocab.json", folder / "merges.txt"
    if all(file.exists() for file in files):
        return ByteBPE.from_files(*files, size)
    return Numbers(size)


def save_pretrained(folder: str | Path, model: GPT, vocabulary: Vocabulary | None = None,
                    state: Mapping[str, np.ndarray] | None = None) -> list[Path]:
    """Write a model so that transformers reads it; return the paths.

    A GPT-2 or a Llama, by its parts.  Raises BadConfig for another one.
    """
    folder, config = Path(folder), model.config
    layout = LAYOUTS["llama" if config.rope else "gpt2"]
    described = layout.write_config(config)
    arrays = written_weights(layout, config, model.state_dict() if state is None else state)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write_safetensors(folder / WEIGHTS, arrays)]
    if isinstance(vocabulary, ByteBPE):
        ids = {token: i for i, token in enumerate(vocabulary.tokens)}
        paths.append(write_text(folder / "vocab.json", json.dumps(ids, ensure_ascii=False)))
        paths.append(write_text(folder / "merges.txt",
                                "\n".join(["#version: 0.2", *vocabulary.merges, ""])))
    paths.append(write_text(folder / CONFIG, json.dumps(described, indent=2)))
    return paths
