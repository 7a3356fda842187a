"""What goes on inside a model: its hidden layers and attention scores, noted from outside of it.

    ids ─▶ embed ─▶ h.0 ─▶ h.1 ─▶ … ─▶ head ─▶ logits           the model as a chain of parts
                       │      │                                  what comes out of a part is its
                   hidden 0  hidden 1                            hidden layer

A map holds attention scores q kᵀ/√d, before the softmax.  Fused attention never gives them away, so
they are computed once more from its qkv: while it is watched, `attn.mix` of an attention layer is a
function that notes them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array
from ...nn import GPT, MLP, Module
from ...nn.chain import ChainPart, chain
from ...nn.gpt import Attention


class TappedOutputs(NamedTuple):
    """What a model makes of a batch: logits (b, …, V), hidden layers (b, …, d), attention maps
    (b, heads, t, t), of those layers that were asked for, in their order."""

    logits: Tensor
    hidden: list[Tensor]
    attention: list[Tensor]


@singledispatch
def part_widths(model: Module) -> list[int]:
    """The length of the last axis of what each part of `chain(model)` returns.

    For a model of your own register a function: @part_widths.register(MyModel).
    """
    raise TypeError(f"a {type(model).__name__} does not say how wide its parts are: write a "
                    "function and register it, @part_widths.register(...)")


@part_widths.register
def _(model: GPT) -> list[int]:
    config = model.config
    return [config.width] * (config.num_layers + 1) + [config.vocab_size]


@part_widths.register
def _(model: MLP) -> list[int]:
    return list(model.sizes[1:])


def hidden_parts(model: Module) -> list[int]:
    """Which parts of the chain are hidden layers: a GPT's blocks, all but the last of an MLP."""
    return [i for i, part in enumerate(chain(model)[:-1]) if part.is_block]


def attention_scores(qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The scores q kᵀ/√d (b, heads, t, t) of causal attention, of qkv (b, t, (heads + 2 kv) d).

    They are 0 where a query sees no key.
    """
    b, t, width = qkv.shape
    d = width // (heads + 2 * kv_heads)
    ends = heads * d, (heads + kv_heads) * d
    q = ag.transpose(ag.reshape(qkv[:, :, :ends[0]], (b, t, kv_heads, heads // kv_heads, d)),
                     (0, 2, 3, 1, 4))
    k = ag.transpose(ag.reshape(qkv[:, :, ends[0]:ends[1]], (b, t, kv_heads, 1, d)),
                     (0, 2, 3, 4, 1))
    scale = np.tril(np.full_like(qkv.data, 1 / math.sqrt(d), shape=(t, t)))     # 0 for the future
    return ag.reshape(ag.matmul(q, k) * Tensor(scale), (b, heads, t, t))


@contextmanager
def capture_attention(layers: Sequence[Attention]) -> Iterator[dict[Attention, Tensor]]:
    """Context in which these layers note the maps of what they mix, by layer."""
    maps = {}

    def noting(layer: Attention) -> Callable[[Tensor], Tensor]:
        mix = layer.mix

        def noted(qkv: Tensor) -> Tensor:
            maps[layer] = attention_scores(qkv, layer.num_heads, layer.num_kv_heads)
            return mix(qkv)
        return noted
    try:
        for layer in layers:
            layer.mix = noting(layer)
        yield maps
    finally:
        for layer in layers:
            vars(layer).pop("mix", None)        # the method of its class is there again


def attention_of(part: ChainPart) -> Attention:
    """The attention layer of a part.  Raises ValueError if there is none."""
    for module in part.modules:
        for _, found in module.named_modules():
            if isinstance(found, Attention):
                return found
    raise ValueError(f"{part.name} has no attention whose map could be matched: only a GPT has")


def run_parts_with_taps(parts: Sequence[ChainPart], x: Tensor | Array, hidden: Sequence[int],
               attention: Sequence[int]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Apply `parts`: (the result, what these parts returned, the attention maps inside those)."""
    layers = [attention_of(parts[i]) for i in attention]
    returned = {}
    with capture_attention(layers) as maps:
        for i, part in enumerate(parts):
            x = part(x)
            if i in hidden:
                returned[i] = x
    return x, [returned[i] for i in hidden], [maps[layer] for layer in layers]


def run_with_taps(model: Module, inputs: Array, hidden: Sequence[int] = (),
            attention: Sequence[int] = ()) -> TappedOutputs:
    """The model's logits of `inputs`, and hidden layers and maps of these layers (0, 1, …)."""
    if not hidden and not attention:
        return TappedOutputs(model.logits(inputs), [], [])
    at = hidden_parts(model)
    return TappedOutputs(*run_parts_with_taps(chain(model), inputs, [at[i] for i in hidden],
                               [at[i] for i in attention]))
