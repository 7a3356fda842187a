"""Models as data: names in models.toml, or columns of a table; and their sizes.

    gpt3-175b   layers 96, width 12288, heads 96, …       one line of models.toml

A model is a GPTConfig.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..nn import GPTConfig, MoEConfig
from ..nn.rotary import RopeConfig
from ..parallel.cost import experts

FILE = Path(__file__).with_name("models.toml")
NEEDED = ("layers", "width", "heads", "vocab")
KNOWN = (*NEEDED, "kv_heads", "head_width", "ffn", "gated", "tied", "sequence", "experts",
         "top_k", "expert_width", "shared_experts", "rope_base")


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """The sizes of every model of models.toml, by its name."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def given_model(text: str, sequence: int | None = None) -> GPTConfig:
    """The model of a name, or of sizes as "layers=4,width=64,…".  Raises ValueError."""
    if "=" not in text:
        return read_model(text, sequence)
    sizes = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not value.isdecimal():
            raise ValueError(f"--model {text}: expected NAME=N,…, not {part!r}")
        sizes[name] = int(value)
    return model_of(sizes | ({"sequence": sequence} if sequence else {}))


def read_model(name: str, sequence: int | None = None) -> GPTConfig:
    """The model of that name.  Raises ValueError for one that is not in models.toml."""
    if name.lower() not in known_models():
        raise ValueError(f"unknown model {name!r}: choose from {', '.join(known_models())}, or "
                         f"give sizes, as {','.join(f'{key}=N' for key in NEEDED)}")
    return model_of(known_models()[name.lower()] | ({"sequence": sequence} if sequence else {}))


def model_of(sizes: Mapping[str, Any]) -> GPTConfig:
    """The model of these sizes; Llama-like unless `gated` is 0.  Raises ValueError."""
    if unknown := [key for key in sizes if key not in KNOWN]:
        raise ValueError(f"unknown size {unknown[0]!r} of a model: choose from "
                         f"{', '.join(KNOWN)}")
    if missing := [key for key in NEEDED if not sizes.get(key)]:
        raise ValueError(f"a model needs {', '.join(NEEDED)}: {', '.join(missing)} is missing")
    width, gated = sizes["width"], sizes.get("gated", True)
    ffn = sizes.get("ffn") or None
    mixture = sizes.get("experts") and MoEConfig(
        sizes["experts"], sizes.get("top_k") or 2, num_shared=sizes.get("shared_experts") or 0,
        width=sizes.get("expert_width") or ffn or 4 * width)
    return GPTConfig(
        sizes["vocab"], sizes.get("sequence") or 4096, sizes["layers"], sizes["heads"], width,
        sizes.get("kv_heads") or None, tied=bool(sizes.get("tied", not gated)),
        head_width=sizes.get("head_width") or None, mlp_width=ffn,
        mlp="swiglu" if gated else "gelu", norm="rms" if gated else "layer",
        rope=RopeConfig(float(sizes.get("rope_base") or 10000)) if gated else None,
        bias=not gated, experts=mixture or None)


def head_width(model: GPTConfig) -> int:
    """The width of an attention head."""
    return model.head_width or model.width // model.num_heads


def attention_parameters(model: GPTConfig) -> int:
    """The parameters of one layer's attention: the matrices of q, k, v and the output."""
    kv_heads = model.num_kv_heads or model.num_heads
    return 2 * model.width * head_width(model) * (model.num_heads + kv_heads)


def mlp_matrices(model: GPTConfig) -> int:
    """The number of matrices of an MLP: 3 with SwiGLU, 2 with GELU."""
    return 3 if model.mlp == "swiglu" else 2


def mlp_width(model: GPTConfig) -> int:
    """The width between the two layers of an MLP."""
    return model.mlp_width or 4 * model.width


def mlp_parameters(model: GPTConfig, active: bool = False) -> int:
    """The parameters of one layer's MLP, or of its experts; if `active`, of those a token uses."""
    if model.experts:
        return experts.layer_parameters(model, active)
    return mlp_matrices(model) * model.width * mlp_width(model)


def active_ratio(model: GPTConfig) -> float:
    """The hidden width of all MLPs that a token uses, relative to that of a dense MLP."""
    moe = model.experts
    if moe is None:
        return 1.0
    return (moe.top_k + moe.num_shared) * (moe.width or 0) / mlp_width(model)


def layer_parameters(model: GPTConfig, active: bool = False) -> int:
    """The parameters of one layer's matrices; if `active`, only of those that a token uses."""
    return attention_parameters(model) + mlp_parameters(model, active)


class Vectors(NamedTuple):
    """Parameters of norms and biases: a layer has some that tp cuts, and some that stay whole.

    `final` are the parameters of the final norm.
    """

    cut: int
    whole: int
    final: int


def vectors(model: GPTConfig) -> Vectors:
    """The numbers of a model's parameters that are in no matrix."""
    norm = model.width * (2 if model.norm == "layer" else 1)
    if not model.bias:
        return Vectors(0, 2 * norm, norm)
    qkv = (model.num_heads + 2 * (model.num_kv_heads or model.num_heads)) * head_width(model)
    columns, rows = (mlp_matrices(model) - 1) * mlp_width(model), model.width
    if model.experts:                   # theirs are counted with their matrices
        columns, rows = 0, 0
    return Vectors(qkv + columns, 2 * norm + model.width + rows, norm)


def rank_parameters(model: GPTConfig, tp: int, ep: int) -> tuple[float, float]:
    """The parameters of one layer on a rank: (without its experts, of its experts)."""
    layer, more = layer_parameters(model), vectors(model)
    if model.experts is None:
        return (layer + more.cut) / tp + more.whole, 0.0
    of_experts, biases, others = experts.parameter_counts(model)
    cut = layer - of_experts - biases - others + more.cut
    return cut / tp + others + more.whole, (of_experts / tp + biases) / ep


def table_parameters(model: GPTConfig) -> int:
    """The parameters of the token embedding; an untied head has as many."""
    return model.vocab_size * model.width


def position_parameters(model: GPTConfig) -> int:
    """The parameters of learned positions; rotary ones have none."""
    return 0 if model.rope else model.context * model.width


def num_parameters(model: GPTConfig) -> int:
    """The parameters of the whole model."""
    of_layer, tables = vectors(model), 1 if model.tied else 2
    layers = model.num_layers * (layer_parameters(model) + of_layer.cut + of_layer.whole)
    return (layers + tables * table_parameters(model) + position_parameters(model)
            + of_layer.final)


def model_flops(model: GPTConfig, tokens: float) -> float:
    """FLOPs of a step, with attention over all pairs, not recomputed: the numerator of MFU.

    72 B s L h² (1 + s/6h + V/12Lh) for a GPT: Korthikanti et al. 2022, appendix A.
    """
    attention = 2 * model.context * model.num_heads * head_width(model)
    layer = 6 * layer_parameters(model, active=True) + 3 * 2 * attention
    return tokens * (model.num_layers * layer + 6 * table_parameters(model))
