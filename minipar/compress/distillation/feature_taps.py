"""Feature taps: run a model and record hidden layers and attention scores, without changing it.

    ids ─▶ embed ─▶ h.0 ─▶ h.1 ─▶ … ─▶ head ─▶ logits           the model as a chain of parts
                       │      │                                  the output of a part is its
                   hidden 0  hidden 1                            hidden layer

A map holds the attention scores q kᵀ/√d, before the softmax.  Fused attention does not return them,
so a wrapper around the core of an attention layer computes them once more, from qkv.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, singledispatch
from typing import NamedTuple

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array
from ...nn import GPT, MLP, Module
from ...nn.chain import chain
from ...nn.gpt import Attention
from ...nn.module import ChainPart

Taps = dict[int, Tensor]        # by the number of a part


class TappedOutputs(NamedTuple):
    """A model's logits (b, …, V), with the recorded hidden layers and attention maps.

    Hidden layers are (b, …, d), maps (b, heads, t, t), in the order of the requested layers.
    """

    logits: Tensor
    hidden: list[Tensor]
    attention: list[Tensor]


@singledispatch
def part_widths(model: Module) -> list[int]:
    """The length of the last axis of what each part of `chain(model)` returns.

    For your own model, register a function: @part_widths.register(MyModel).
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
    """The numbers of the parts that are hidden layers: a GPT's blocks, all but an MLP's last."""
    return [i for i, part in enumerate(chain(model)[:-1]) if part.is_block]


def attention_scores(qkv: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The scores q kᵀ/√d (b, heads, t, t) of causal attention, from qkv (b, t, (heads + 2 kv) d).

    Masked scores are 0.
    """
    b, t, width = qkv.shape
    d = width // (heads + 2 * kv_heads)
    ends = heads * d, (heads + kv_heads) * d
    q = ag.transpose(ag.reshape(qkv[:, :, :ends[0]], (b, t, kv_heads, heads // kv_heads, d)),
                     (0, 2, 3, 1, 4))
    k = ag.transpose(ag.reshape(qkv[:, :, ends[0]:ends[1]], (b, t, kv_heads, 1, d)),
                     (0, 2, 3, 4, 1))
    scale = np.full_like(np.empty((t, t), qkv.data.dtype, like=qkv.data), 1 / math.sqrt(d))
    return ag.reshape(ag.matmul(q, k) * Tensor(np.tril(scale)),   # 0 for the future
                      (b, heads, t, t))


@contextmanager
def capture_attention(layers: Sequence[Attention]) -> Iterator[dict[Attention, Tensor]]:
    """Context in which these layers record their attention maps, by layer."""
    maps = {}

    def note(layer: Attention, attend: Callable, qkv: Tensor, *heads: int) -> Tensor:
        maps[layer] = attention_scores(qkv, *heads)
        return attend(qkv, *heads)
    doors = [layer.core.around(partial(note, layer)) for layer in layers]
    try:
        yield maps
    finally:
        for door in doors:
            door.remove()


def attention_of(part: ChainPart) -> Attention:
    """The attention layer of a part.  Raises ValueError if there is none."""
    for module in part.modules:
        for _, found in module.named_modules():
            if isinstance(found, Attention):
                return found
    raise ValueError(f"{part.name} has no attention whose map could be compared: only a GPT has")


def run_parts_with_taps(parts: Mapping[int, ChainPart], x: Tensor | Array, hidden: Sequence[int],
                        attention: Sequence[int]) -> tuple[Tensor, Taps, Taps]:
    """Apply `parts`, given by number, to x.

    Returns (the result, the outputs of parts in `hidden`, the maps of parts in `attention`).
    """
    layers = {i: attention_of(parts[i]) for i in attention if i in parts}
    outputs = {}
    with capture_attention(list(layers.values())) as maps:
        for i, part in parts.items():
            x = part(x)
            if i in hidden:
                outputs[i] = x
    return x, outputs, {i: maps[layer] for i, layer in layers.items()}


def run_with_taps(model: Module, inputs: Array, hidden: Sequence[int] = (),
                  attention: Sequence[int] = ()) -> TappedOutputs:
    """Run `model`: its logits, and the hidden states and maps of these layers (0, 1, …)."""
    if not hidden and not attention:
        return TappedOutputs(model.logits(inputs), [], [])
    at = hidden_parts(model)
    hidden, attention = [at[i] for i in hidden], [at[i] for i in attention]
    logits, outputs, maps = run_parts_with_taps(dict(enumerate(chain(model))), inputs, hidden,
                                                attention)
    return TappedOutputs(logits, [outputs[i] for i in hidden], [maps[i] for i in attention])
