"""Layers evaluated on plain arrays: the forward of training, without what a graph needs.

At one token a step, a layer's arithmetic takes microseconds, and so do a Tensor and a call of a
Function around it.  Here each plain layer is one function of arrays.  Every other layer (quantized,
sparse, tensor-parallel, with transformed parameters) is called as it is, and so are all of them
where a meter or a hook is to see each operation.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...autograd import Tensor, is_observed
from ...backend import Array, check_ids
from ...nn import Embedding, LayerNorm, Linear, Module
from ...nn.gpt import GPT, FeedForward


def evaluate(layer: Module, x: Array) -> Array:
    """The output of `layer` for the array x, inside no_grad()."""
    function = PLAIN.get(type(layer))
    if function is None or not is_plain(layer):
        return layer(Tensor(x) if x.dtype.kind == "f" else x).data
    return function(layer, x)


def evaluate_head(model: GPT, x: Array) -> Array:
    """x (T, d) → logits (T, V), as GPT.head."""
    if type(model) is not GPT or not is_plain(model) or "head" in model.__dict__:
        return model.head(Tensor(x)).data
    x = evaluate(model.ln_f, x)
    if not model.config.tied:
        return evaluate(model.lm_head, x)
    return x @ model.wte.weight.data.T


def is_plain(layer: Module) -> bool:
    """True if nothing but the code of its class says what the layer computes."""
    own = layer.__dict__
    return not own["_transforms"] and "forward" not in own and not is_observed()


def _linear(layer: Linear, x: Array) -> Array:
    own = layer._parameters
    y = x @ own["weight"].data
    if layer.has_bias:
        y += own["bias"].data
    return y


def _embedding(layer: Embedding, ids: Array) -> Array:
    table = layer._parameters["weight"].data
    check_ids(ids, len(table), "ids")
    return table.take(ids, axis=0)


def _layer_norm(layer: LayerNorm, x: Array) -> Array:
    own, width = layer._parameters, x.shape[-1]
    y = x - x.sum(axis=-1, keepdims=True) / width
    variance = (y * y).sum(axis=-1, keepdims=True) / width
    y /= np.sqrt(variance + layer.epsilon)
    y *= own["weight"].data
    y += own["bias"].data
    return y


def _feed_forward(layer: FeedForward, x: Array) -> Array:
    own = layer._modules
    return evaluate(own["c_proj"], gelu(evaluate(own["c_fc"], x)))


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


PLAIN: dict[type[Module], Callable[[Any, Array], Array]] = {
    Linear: _linear, Embedding: _embedding, LayerNorm: _layer_norm, FeedForward: _feed_forward}
