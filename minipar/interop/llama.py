"""Llama's layout in Hugging Face's files: weights as (out, in), queries, keys and values apart.

    model.embed_tokens.weight                   wte.weight
    model.layers.0.input_layernorm.weight       h.0.ln_1.weight
    model.layers.0.self_attn.{q,k,v}_proj       h.0.attn.c_attn, joined
    model.layers.0.self_attn.o_proj             h.0.attn.c_proj
    model.layers.0.post_attention_layernorm     h.0.ln_2
    model.layers.0.mlp.{gate,up,down}_proj      h.0.mlp.c_gate, c_fc, c_proj
    model.norm.weight, lm_head.weight           ln_f.weight, lm_head.weight

Rotary positions turn the halves of a head, as in minipar.
"""

from collections.abc import Mapping
from typing import Any

from ..nn import GPTConfig, RopeConfig
from .layout import BadConfig, Weight, expect, number


class LlamaLayout:
    """LlamaForCausalLM."""

    model_type, prefix = "llama", "model."

    def read_config(self, config: Mapping[str, Any]) -> GPTConfig:
        """The sizes and kinds of the model.  Raises BadConfig."""
        expect(config, hidden_act="silu", attention_bias=False, mlp_bias=False, pretraining_tp=1,
               tie_word_embeddings=(True, False), sliding_window=None)
        heads = number(config, "num_attention_heads")
        head_width = number(config, "head_dim") if config.get("head_dim") else None
        try:
            return GPTConfig(
                number(config, "vocab_size"), number(config, "max_position_embeddings"),
                number(config, "num_hidden_layers"), heads, number(config, "hidden_size"),
                number(config, "num_key_value_heads", heads), head_width=head_width,
                mlp_width=number(config, "intermediate_size"), norm="rms",
                norm_epsilon=number(config, "rms_norm_eps", 1e-6), mlp="swiglu",
                rope=read_rope(config), bias=False,
                tied=config.get("tie_word_embeddings", False))
        except BadConfig:
            raise
        except ValueError as error:
            raise BadConfig(f"config.json: {error}") from error

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        """config.json of a model.  Raises BadConfig if Llama's layout has no such model."""
        if (config.norm, config.mlp, config.bias) != ("rms", "swiglu", False) or not config.rope:
            raise BadConfig("Llama's layout has RMS norm, SwiGLU, rotary positions and no biases: "
                            "this model has other parts")
        return {"model_type": self.model_type, "architectures": ["LlamaForCausalLM"],
                "vocab_size": config.vocab_size, "max_position_embeddings": config.context,
                "hidden_size": config.width, "num_hidden_layers": config.num_layers,
                "num_attention_heads": config.num_heads,
                "num_key_value_heads": config.num_kv_heads or config.num_heads,
                "head_dim": config.head_width or config.width // config.num_heads,
                "intermediate_size": config.mlp_width or 4 * config.width, "hidden_act": "silu",
                "rms_norm_eps": config.norm_epsilon, "tie_word_embeddings": config.tied,
                "attention_bias": False, "mlp_bias": False, "rope_theta": config.rope.theta,
                "rope_parameters": write_rope(config.rope)}

    def weights(self, config: GPTConfig) -> list[Weight]:
        """All parameters of the model."""
        n = config.head_width or config.width // config.num_heads
        q, kv = config.num_heads * n, (config.num_kv_heads or config.num_heads) * n
        found = [Weight("wte.weight", ("embed_tokens.weight",)),
                 Weight("ln_f.weight", ("norm.weight",))]
        for i in range(config.num_layers):
            theirs, ours = f"layers.{i}.", f"h.{i}."
            attention = tuple(f"{theirs}self_attn.{part}_proj.weight" for part in "qkv")
            found += [
                Weight(f"{ours}ln_1.weight", (f"{theirs}input_layernorm.weight",)),
                Weight(f"{ours}attn.c_attn.weight", attention, True, (q, kv, kv)),
                Weight(f"{ours}attn.c_proj.weight", (f"{theirs}self_attn.o_proj.weight",), True),
                Weight(f"{ours}ln_2.weight", (f"{theirs}post_attention_layernorm.weight",)),
                Weight(f"{ours}mlp.c_gate.weight", (f"{theirs}mlp.gate_proj.weight",), True),
                Weight(f"{ours}mlp.c_fc.weight", (f"{theirs}mlp.up_proj.weight",), True),
                Weight(f"{ours}mlp.c_proj.weight", (f"{theirs}mlp.down_proj.weight",), True)]
        if not config.tied:
            found.append(Weight("lm_head.weight", ("lm_head.weight",), True))
        return found

    def is_ignored(self, name: str) -> bool:
        """True if an array of the file is no weight: old tables of angles, a tied model's head."""
        return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Rotary positions, from where older and newer files have them.  Raises BadConfig."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = number({**config, **rope}, "rope_theta", 10_000.0)
    if kind == "default":
        return RopeConfig(float(theta))
    if kind == "linear":
        return RopeConfig(float(theta), kind, float(number(rope, "factor")))
    if kind == "llama3":
        return RopeConfig(float(theta), kind, float(number(rope, "factor")),
                          float(number(rope, "low_freq_factor")),
                          float(number(rope, "high_freq_factor")),
                          int(number(rope, "original_max_position_embeddings")))
    raise BadConfig(f"config.json has rope_type={kind!r}; this model does 'default', 'linear' or "
                    "'llama3' only")


def write_rope(rope: RopeConfig) -> dict[str, Any]:
    """Rotary positions, as transformers writes them."""
    found: dict[str, Any] = {"rope_theta": rope.theta, "rope_type": rope.scaling or "default"}
    if rope.scaling:
        found["factor"] = rope.factor
    if rope.scaling == "llama3":
        found |= {"low_freq_factor": rope.low_freq_factor,
                  "high_freq_factor": rope.high_freq_factor,
                  "original_max_position_embeddings": rope.original_context}
    return found
