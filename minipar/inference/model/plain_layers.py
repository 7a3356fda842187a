"""Layers evaluated on plain arrays: the same forward as in training, without a graph.

These functions repeat layers of `nn/` because at one token a step the graph costs as much time as
the arithmetic.  A Tensor and a call of a Function take microseconds, as the layer itself does.
test_plain_layers_are_those_of_training (tests/inference/test_cached_forward.py) holds each function
equal to its layer in `nn/`.

Every other layer (quantized, sparse, tensor-parallel, with transformed parameters) is called as it
is.  So are all layers when a meter or a hook must see each operation.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from ...autograd import Tensor
from ...autograd.function import is_observed
from ...backend import Array, check_ids, is_host
from ...nn import Embedding, LayerNorm, Linear, Module, RMSNorm
from ...nn.gpt import GPT, FeedForward, GatedFeedForward, Head


def evaluate(layer: Module, x: Array) -> Array:
    """The output of `layer` for the array x, inside no_grad()."""
    own, function = layer.__dict__, PLAIN.get(type(layer))
    altered = own["_around"]
    for parameter in own["_parameters"].values():
        altered = altered or parameter.transforms
    if function is None or altered or is_observed():
        return layer(Tensor(x) if x.dtype.kind == "f" else x).data
    return function(own, x)


def evaluate_head(model: GPT, x: Array) -> Array:
    """x (T, d) → logits (T, V), as Head computes them."""
    if type(model.head) is not Head or model.head._around or is_observed():
        return model.head(Tensor(x)).data
    x = evaluate(model.ln_f, x)
    return x @ model.wte.weight.data.T if model.config.tied else evaluate(model.lm_head, x)


# ---- the plain layers: `own` are the attributes of the layer

def _linear(own: dict, x: Array) -> Array:
    y = x @ own["_parameters"]["weight"].data
    if own["has_bias"]:
        y += own["_parameters"]["bias"].data
    return y


def _embedding(own: dict, ids: Array) -> Array:
    table = own["_parameters"]["weight"].data
    check_ids(ids, len(table), "ids")
    return table.take(ids, axis=0)


def _layer_norm(own: dict, x: Array) -> Array:
    y = x - token_means(x)
    y /= np.sqrt(token_means(y * y) + own["epsilon"])
    y *= own["_parameters"]["weight"].data
    y += own["_parameters"]["bias"].data
    return y


def _rms_norm(own: dict, x: Array) -> Array:
    y = x / np.sqrt(token_means(x * x) + own["epsilon"])
    y *= own["_parameters"]["weight"].data
    return y


def token_means(x: Array) -> Array:
    """The mean over the width of each token of x (T, d): (T, 1)."""
    if is_host(x):                      # for one token, a product takes half the time of a sum
        return x @ _averages(x.shape[-1], x.dtype)
    return x.mean(axis=-1, keepdims=True)


@cache
def _averages(width: int, dtype: np.dtype) -> np.ndarray:
    return np.full((width, 1), 1 / width, dtype)


def _feed_forward(own: dict, x: Array) -> Array:
    parts = own["_modules"]
    return evaluate(parts["c_proj"], gelu(evaluate(parts["c_fc"], x)))


def _gated_feed_forward(own: dict, x: Array) -> Array:
    parts = own["_modules"]
    gated = silu(evaluate(parts["c_gate"], x))
    gated *= evaluate(parts["c_fc"], x)
    return evaluate(parts["c_proj"], gated)


def gelu(x: Array) -> Array:
    """x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, in place of x."""
    a = math.sqrt(2 / math.pi)
    p = x * x
    p *= 0.044715 * a
    p += a
    p *= x
    np.tanh(p, out=p)
    p += 1
    p *= 0.5
    x *= p
    return x


def silu(x: Array) -> Array:
    """x / (1 + e⁻ˣ) = x (1 + tanh(x/2)) / 2, in place of x."""
    p = x * 0.5
    np.tanh(p, out=p)
    p += 1
    p *= 0.5
    x *= p
    return x


PLAIN: dict[type[Module], Callable[[dict, Array], Array]] = {
    Linear: _linear, Embedding: _embedding, LayerNorm: _layer_norm, RMSNorm: _rms_norm,
    FeedForward: _feed_forward, GatedFeedForward: _gated_feed_forward}
