"""Llama's layout in Hugging Face's files: linear layers are transposed, and q, k, v are apart.

    here, (in, out)              there, (out, in), without biases
    wte                          model.embed_tokens
    h.0.ln_1, h.0.ln_2           model.layers.0.input_layernorm, .post_attention_layernorm
    ln_f                         model.norm
    h.0.attn.c_attn              q_proj, k_proj, v_proj side by side
    h.0.attn.c_proj              o_proj
    h.0.mlp.c_gate, c_fc         gate_proj, up_proj
    h.0.mlp.c_proj               down_proj
    lm_head                      lm_head, unless tied

In both, rotary positions turn pairs (j, j + n/2) of a head's n numbers.  Meta's own files are for
pairs (2j, 2j + 1): rows of q and k have a different order, and all arrays have different names.
minipar refuses such files.
"""

import re
from typing import Any

from ..nn import GPTConfig, RopeConfig
from .config import Config
from .layout import Weight
from .safetensors import InteropError

ARCHITECTURE = "LlamaForCausalLM"
PARTS = {"norm": "rms", "mlp": "swiglu", "positions": "rotary", "biases": False}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
BUFFERS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def full_name(key: str) -> str | None:
    """The name of an array; None for an array that is no weight."""
    return None if BUFFERS.fullmatch(key) else key


def read_config(config: Config) -> tuple[GPTConfig, bool | None]:
    """The sizes that a config.json gives, and whether it ties the head.  Raises InteropError."""
    config.expect("hidden_act", "silu", default="silu")
    for key in ("attention_bias", "mlp_bias"):
        config.expect(key, False, default=False)
    for key in ("pretraining_tp", "partial_rotary_factor"):
        config.expect(key, 1, default=1)
    config.expect("attention_dropout", 0, default=0)
    config.expect("sliding_window", None)
    config.refuse_quantized()
    width, heads = config.need("hidden_size", int), config.need("num_attention_heads", int)
    tied = config.get("tie_word_embeddings", bool, False)
    return GPTConfig(vocab_size=config.need("vocab_size", int),
                     context=config.need("max_position_embeddings", int),
                     num_layers=config.need("num_hidden_layers", int), num_heads=heads, width=width,
                     num_kv_heads=config.get("num_key_value_heads", int), tied=tied,
                     head_width=config.get("head_dim", int),
                     mlp_width=config.need("intermediate_size", int), norm="rms",
                     norm_epsilon=config.get("rms_norm_eps", float, 1e-6), mlp="swiglu",
                     rope=read_rope(config), bias=False), tied


def read_rope(config: Config) -> RopeConfig:
    """The settings of rotary positions.

    They are in rope_parameters, or, in older files, in rope_scaling and rope_theta.
    """
    inner = config.inner("rope_parameters" if config.values.get("rope_parameters") is not None
                         else "rope_scaling")
    theta = inner.get("rope_theta", float) or config.get("rope_theta", float, 10_000.0)
    key = "type" if "rope_type" not in inner.values else "rope_type"
    kind = inner.expect(key, "default", "linear", "llama3", default="default")
    inner.expect("partial_rotary_factor", 1, default=1)
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, inner.need("factor", float))
    return RopeConfig(theta, kind, inner.need("factor", float),
                      inner.need("low_freq_factor", float), inner.need("high_freq_factor", float),
                      inner.need("original_max_position_embeddings", int))


def write_config(sizes: GPTConfig) -> dict[str, Any]:
    """The config.json of a GPT.  Raises InteropError for one that this layout does not know."""
    if sizes.dropout:
        raise InteropError(f"Llama's layout has no dropout, here {sizes.dropout}: it would be lost "
                           "in further training, so train with --dropout 0")
    assert sizes.rope is not None
    rope: dict[str, Any] = {"rope_type": sizes.rope.scaling or "default",
                            "rope_theta": sizes.rope.theta}
    if sizes.rope.scaling:
        rope["factor"] = sizes.rope.factor
    if sizes.rope.scaling == "llama3":
        rope |= {"low_freq_factor": sizes.rope.low_freq_factor,
                 "high_freq_factor": sizes.rope.high_freq_factor,
                 "original_max_position_embeddings": sizes.rope.original_context}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {"model_type": "llama", "vocab_size": sizes.vocab_size, "hidden_size": sizes.width,
            "max_position_embeddings": sizes.context, "num_hidden_layers": sizes.num_layers,
            "num_attention_heads": sizes.num_heads,
            "num_key_value_heads": sizes.num_kv_heads or sizes.num_heads,
            "head_dim": sizes.head_width or sizes.width // sizes.num_heads,
            "intermediate_size": sizes.mlp_width or 4 * sizes.width, "hidden_act": "silu",
            "rms_norm_eps": sizes.norm_epsilon, "attention_bias": False, "mlp_bias": False,
            "rope_parameters": rope, "rope_theta": sizes.rope.theta,    # both: newer, older readers
            "rope_scaling": scaling if sizes.rope.scaling else None}


def weights(sizes: GPTConfig) -> list[Weight]:
    """Each parameter, and the arrays of the file that it is made of."""
    d, wide = sizes.width, sizes.mlp_width or 4 * sizes.width
    n = sizes.head_width or d // sizes.num_heads
    q, kv = sizes.num_heads * n, (sizes.num_kv_heads or sizes.num_heads) * n
    table = [Weight("wte.weight", {EMBEDDING: (sizes.vocab_size, d)})]
    for i in range(sizes.num_layers):
        ours, theirs = f"h.{i}", f"model.layers.{i}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        table += [
            Weight(f"{ours}.ln_1.weight", {f"{theirs}.input_layernorm.weight": (d,)}),
            Weight(f"{ours}.ln_2.weight", {f"{theirs}.post_attention_layernorm.weight": (d,)}),
            Weight(f"{ours}.attn.c_attn.weight",
                   {f"{attention}.q_proj.weight": (q, d), f"{attention}.k_proj.weight": (kv, d),
                    f"{attention}.v_proj.weight": (kv, d)}, is_transposed=True),
            Weight(f"{ours}.attn.c_proj.weight", {f"{attention}.o_proj.weight": (d, q)},
                   is_transposed=True),
            Weight(f"{ours}.mlp.c_gate.weight", {f"{mlp}.gate_proj.weight": (wide, d)},
                   is_transposed=True),
            Weight(f"{ours}.mlp.c_fc.weight", {f"{mlp}.up_proj.weight": (wide, d)},
                   is_transposed=True),
            Weight(f"{ours}.mlp.c_proj.weight", {f"{mlp}.down_proj.weight": (d, wide)},
                   is_transposed=True)]
    table.append(Weight("ln_f.weight", {"model.norm.weight": (d,)}))
    if not sizes.tied:
        table.append(Weight(HEAD, {HEAD: (sizes.vocab_size, d)}, is_transposed=True))
    return table
