"""GPT-2's layout in Hugging Face's files: minipar's own names, weights as (in, out).

    transformer.h.0.attn.c_attn.weight     as h.0.attn.c_attn.weight; the prefix may be missing
    transformer.h.0.attn.bias              a mask in old files, no weight
    lm_head.weight                         of untied models, (vocabulary, width)

Radford et al. 2019.
"""

import re
from collections.abc import Mapping
from typing import Any

from ..nn import GPTConfig
from .layout import BadConfig, Weight, expect, number

MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
LINEAR = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


class GPT2Layout:
    """GPT2LMHeadModel."""

    model_type, prefix = "gpt2", "transformer."

    def read_config(self, config: Mapping[str, Any]) -> GPTConfig:
        """The sizes of the model.  Raises BadConfig."""
        expect(config, activation_function=("gelu_new", "gelu_pytorch_tanh"),
               scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
               add_cross_attention=False, reorder_and_upcast_attn=False,
               tie_word_embeddings=(True, False))
        inner = number(config, "n_inner") if "n_inner" in config else None
        try:
            return GPTConfig(
                number(config, "vocab_size"), number(config, "n_positions"),
                number(config, "n_layer"), number(config, "n_head"), number(config, "n_embd"),
                mlp_width=inner, tied=config.get("tie_word_embeddings", True),
                norm_epsilon=number(config, "layer_norm_epsilon", 1e-5))
        except ValueError as error:
            raise BadConfig(f"config.json: {error}") from error

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        """config.json of a model.  Raises BadConfig if GPT-2's layout has no such model."""
        kinds = config.norm, config.mlp, config.rope, config.bias
        heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        has_plain_heads = heads == kv_heads and config.head_width in (None, config.width // heads)
        if kinds != ("layer", "gelu", None, True) or not has_plain_heads:
            raise BadConfig("GPT-2's layout has layer norm, GELU, learned positions, biases and "
                            "plain attention only: this model has other parts")
        return {"model_type": self.model_type, "architectures": ["GPT2LMHeadModel"],
                "vocab_size": config.vocab_size, "n_positions": config.context,
                "n_embd": config.width, "n_layer": config.num_layers, "n_head": heads,
                "n_inner": config.mlp_width, "activation_function": "gelu_new",
                "layer_norm_epsilon": config.norm_epsilon, "tie_word_embeddings": config.tied,
                "attn_pdrop": config.dropout, "resid_pdrop": config.dropout,
                "embd_pdrop": config.dropout}

    def weights(self, config: GPTConfig) -> list[Weight]:
        """All parameters of the model."""
        names = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
        names += [f"h.{i}.{part}.{kind}" for i in range(config.num_layers)
                  for part in ("ln_1", "ln_2", *LINEAR) for kind in ("weight", "bias")]
        found = [Weight(name, (name,)) for name in names]
        if not config.tied:
            found.append(Weight("lm_head.weight", ("lm_head.weight",), is_transposed=True))
        return found

    def is_ignored(self, name: str) -> bool:
        """True if an array of the file is no weight: a mask, or the head of a tied model."""
        return bool(MASK.fullmatch(name)) or name == "lm_head.weight"
