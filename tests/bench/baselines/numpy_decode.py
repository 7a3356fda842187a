"""Decoding written by hand in NumPy: one sequence, a cache of keys and values, nothing in between.

The equations of `minipar.nn.gpt`.  What minipar's modules, rows and caches cost is the difference.

t = new tokens, d = width, h = heads, n = d / h, V = vocabulary.
"""

import math

import numpy as np


class NumpyDecoder:
    """A GPT with layer norms and a tied head, from the `state_dict` of minipar's."""

    def __init__(self, state: dict[str, np.ndarray], num_heads: int):
        self.p, self.num_heads = state, num_heads
        self.num_layers = sum(name.endswith("ln_1.weight") for name in state)
        context, width = state["wpe.weight"].shape
        shape = (self.num_layers, num_heads, context, width // num_heads)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The likeliest tokens that follow `prompt`."""
        logits = self.step(np.array(prompt), 0)
        tokens = [int(logits.argmax())]
        for position in range(len(prompt), len(prompt) + num_tokens - 1):
            logits = self.step(np.array(tokens[-1:]), position)
            tokens.append(int(logits.argmax()))
        return tokens

    def step(self, ids: np.ndarray, start: int) -> np.ndarray:
        """The logits (V,) after tokens `ids` (t,) from position `start` on."""
        p = self.p
        x = p["wte.weight"][ids] + p["wpe.weight"][start:start + len(ids)]
        for layer in range(self.num_layers):
            name = f"h.{layer}."
            qkv = self.linear(self.layer_norm(x, name + "ln_1"), name + "attn.c_attn")
            x += self.linear(self.attention(qkv, layer, start), name + "attn.c_proj")
            wide = gelu(self.linear(self.layer_norm(x, name + "ln_2"), name + "mlp.c_fc"))
            x += self.linear(wide, name + "mlp.c_proj")
        return self.layer_norm(x[-1:], "ln_f")[0] @ p["wte.weight"].T

    def attention(self, qkv: np.ndarray, layer: int, start: int) -> np.ndarray:
        """The attention (t, d) of new tokens over all tokens up to each."""
        t, stop = len(qkv), start + len(qkv)
        q, k, v = qkv.reshape(t, 3, self.num_heads, -1).transpose(1, 2, 0, 3)       # (h, t, n)
        self.keys[layer, :, start:stop], self.values[layer, :, start:stop] = k, v
        keys, values = self.keys[layer, :, :stop], self.values[layer, :, :stop]
        scores = q @ keys.transpose(0, 2, 1) / math.sqrt(q.shape[2])                # (h, t, stop)
        if t > 1:
            scores += np.triu(np.full((t, stop), -1e30, np.float32), start + 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ values).transpose(1, 0, 2).reshape(t, -1)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """y = x w + bias."""
        y = x @ self.p[name + ".weight"]
        y += self.p[name + ".bias"]
        return y

    def layer_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """y = (x - mean) / standard deviation · gain + bias."""
        y = x - x.mean(axis=-1, keepdims=True)
        y /= np.sqrt((y * y).mean(axis=-1, keepdims=True) + 1e-5)
        y *= self.p[name + ".weight"]
        y += self.p[name + ".bias"]
        return y


def gelu(x: np.ndarray) -> np.ndarray:
    """y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
