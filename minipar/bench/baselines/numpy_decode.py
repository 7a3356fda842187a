"""Decoding written by hand in NumPy: one sequence, a cache of keys and values, nothing in between.

The equations of `minipar.nn.gpt`, one token at a time.  What minipar's modules, its blocks and its
batches cost is the difference.

d = width, h = heads, n = d / h, V = vocabulary.
"""

import math

import numpy as np


class NumpyDecoder:
    """A GPT without dropout, with a tied head, from the `state_dict` of minipar's."""

    def __init__(self, state: dict[str, np.ndarray], num_heads: int):
        self.p, self.num_heads = state, num_heads
        self.num_layers = sum(name.endswith("ln_1.weight") for name in state)
        context, width = state["wpe.weight"].shape
        shape = (self.num_layers, num_heads, context, width // num_heads)
        self.keys, self.values = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The likeliest tokens that follow `prompt`."""
        for position, token in enumerate(prompt):
            logits = self.step(token, position)
        tokens = []
        for position in range(len(prompt), len(prompt) + num_tokens):
            tokens.append(int(logits.argmax()))
            if len(tokens) < num_tokens:
                logits = self.step(tokens[-1], position)
        return tokens

    def step(self, token: int, position: int) -> np.ndarray:
        """The logits (V,) after `token`, whose keys and values join the cache."""
        p = self.p
        x = p["wte.weight"][token] + p["wpe.weight"][position]
        for layer in range(self.num_layers):
            name = f"h.{layer}."
            qkv = self.linear(self.layer_norm(x, name + "ln_1"), name + "attn.c_attn")
            x = x + self.linear(self.attention(qkv, layer, position), name + "attn.c_proj")
            wide = gelu(self.linear(self.layer_norm(x, name + "ln_2"), name + "mlp.c_fc"))
            x = x + self.linear(wide, name + "mlp.c_proj")
        return self.layer_norm(x, "ln_f") @ p["wte.weight"].T

    def attention(self, qkv: np.ndarray, layer: int, position: int) -> np.ndarray:
        """The attention (d,) of the token at `position` over all tokens up to it."""
        q, k, v = qkv.reshape(3, self.num_heads, -1)
        self.keys[layer, :, position], self.values[layer, :, position] = k, v
        keys, values = (cache[layer, :, :position + 1] for cache in (self.keys, self.values))
        scores = (keys @ q[:, :, None])[:, :, 0] / math.sqrt(q.shape[1])        # (h, position + 1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights[:, None] @ values).reshape(-1)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """y = x w + bias."""
        return x @ self.p[name + ".weight"] + self.p[name + ".bias"]

    def layer_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """y = (x - mean) / standard deviation · gain + bias."""
        centered = x - x.mean()
        scale = 1 / math.sqrt(centered @ centered / len(x) + 1e-5)
        return centered * scale * self.p[name + ".weight"] + self.p[name + ".bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    """y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
