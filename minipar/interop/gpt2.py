"""GPT-2's layout in Hugging Face's files: names and orientation of weights as in our GPT.

    transformer.h.0.attn.c_attn.weight   (in, out), as their Conv1D has it: not transposed
    lm_head.weight                       (V, d), transposed; only if the head is not tied

The oldest files lack the prefix `transformer.`, and store attention's mask as h.0.attn.bias.  The
mask is no weight, so `full_name` leaves it out.
"""

import re
from typing import Any

from ..nn import GPTConfig
from .config import Config
from .layout import Weight
from .safetensors import InteropError

ARCHITECTURE = "GPT2LMHeadModel"
PARTS = {"norm": "layer", "mlp": "gelu", "positions": "learned", "biases": True}
PREFIX = "transformer."
HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"
BUFFERS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")      # not h.0.attn.c_attn.bias
GELU = ("gelu_new", "gelu_pytorch_tanh")
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def full_name(key: str) -> str | None:
    """The name of an array as newer files have it; None for an array that is no weight."""
    key = key.removeprefix(PREFIX)
    if BUFFERS.fullmatch(key):
        return None
    return key if key == HEAD else PREFIX + key


def read_config(config: Config) -> tuple[GPTConfig, bool | None]:
    """The sizes that a config.json gives, and whether it ties the head.  Raises InteropError."""
    config.expect("activation_function", *GELU, default="gelu_new")
    config.expect("scale_attn_weights", True, default=True)
    config.expect("scale_attn_by_inverse_layer_idx", False, default=False)
    config.expect("add_cross_attention", False, default=False)
    config.refuse_quantized()
    rates = {key: config.get(key, float, 0.1) for key in DROPOUTS}
    for key, rate in rates.items():
        if rate != rates[DROPOUTS[0]]:
            config.refuse(key, f"a model here has one dropout rate, and {DROPOUTS[0]} is "
                          f"{rates[DROPOUTS[0]]}: make them equal")
    context = config.need("n_ctx" if config.get("n_positions", int) is None else "n_positions", int)
    width = config.need("n_embd", int)
    tied = config.get("tie_word_embeddings", bool, True)
    return GPTConfig(config.need("vocab_size", int), context, config.need("n_layer", int),
                     config.need("n_head", int), width, dropout=rates[DROPOUTS[0]], tied=tied,
                     mlp_width=config.get("n_inner", int),
                     norm_epsilon=config.get("layer_norm_epsilon", float, 1e-5)), tied


def write_config(sizes: GPTConfig) -> dict[str, Any]:
    """The config.json of a GPT.  Raises InteropError for one that this layout does not know."""
    if sizes.num_kv_heads not in (None, sizes.num_heads):
        raise InteropError(f"GPT-2's layout has no kv_heads, here {sizes.num_kv_heads} for "
                           f"{sizes.num_heads} heads: only Llama's has")
    if sizes.head_width not in (None, sizes.width / sizes.num_heads):
        raise InteropError(f"GPT-2's layout has no head_width, here {sizes.head_width} for a width "
                           f"of {sizes.width} and {sizes.num_heads} heads: only Llama's has")
    return {"model_type": "gpt2", "vocab_size": sizes.vocab_size, "n_positions": sizes.context,
            "n_embd": sizes.width, "n_layer": sizes.num_layers, "n_head": sizes.num_heads,
            "n_inner": sizes.mlp_width, "activation_function": "gelu_new",
            "layer_norm_epsilon": sizes.norm_epsilon, **dict.fromkeys(DROPOUTS, sizes.dropout)}


def weights(sizes: GPTConfig) -> list[Weight]:
    """Each parameter, and the array of the file that it is."""
    d, wide = sizes.width, sizes.mlp_width or 4 * sizes.width
    shapes = {"wte.weight": (sizes.vocab_size, d), "wpe.weight": (sizes.context, d)}
    for i in range(sizes.num_layers):
        for layer, columns in (("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
                               ("mlp.c_fc", (d, wide)), ("mlp.c_proj", (wide, d))):
            shapes |= {f"h.{i}.{layer}.weight": columns, f"h.{i}.{layer}.bias": columns[1:]}
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": (d,), f"h.{i}.{norm}.bias": (d,)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    table = [Weight(name, {PREFIX + name: shape}) for name, shape in shapes.items()]
    if not sizes.tied:
        table.append(Weight(HEAD, {HEAD: (sizes.vocab_size, d)}, is_transposed=True))
    return table
