"""Measure how much memory fewer bits for weights and cache save, and how much the logits change.

    weights     every step reads all of them: at batch 1 they decide time and energy
    cache       grows with every token of every request: it decides how many requests run at once

The weights are quantized by `compress`, the cache by `cache/quantized.py`; any two combine.
"""

import copy
from typing import Any, NamedTuple

import numpy as np

from ...backend import to_host
from ...compress.quantization.affine import INT4, INT8
from ...compress.quantization.granularity import Granularity
from ...compress.quantization.layers import QuantizedLayer
from ...compress.quantization.post_training import quantize
from ...nn import GPT
from ..cache import CACHES, KVSizes, PagedKVCache, SequenceInput
from .cached_forward import forward_over_cache

BLOCK = 16                          # tokens
WEIGHTS: dict[str, tuple[Any, Granularity] | None] = {
    "float": None, "int8": (INT8, Granularity("channel")),
    "int4": (INT4, Granularity("group", 32))}


class Compressed(NamedTuple):
    """A model with fewer bits, against itself."""

    weights: str
    cache: str
    weight_bytes: int
    cache_bytes_per_token: float
    error: float                    # root mean square of the change of a logit, over its deviation
    same_token: float               # part of the positions where the likeliest token is the same


def compare(model: GPT, ids: np.ndarray) -> list[Compressed]:
    """All pairs of WEIGHTS and CACHES, decoding the tokens ids (t,); float and full first."""
    found: list[Compressed] = []
    expected: np.ndarray | None = None
    for weights in WEIGHTS:
        version = with_weights(model, weights)
        for cache in CACHES:
            kv = CACHES[cache](KVSizes.of(version), -(-len(ids) // BLOCK), BLOCK,
                               model.slabs[0].data)
            logits = decoded_logits(version, kv, ids)
            expected = logits if expected is None else expected
            change = np.sqrt(np.mean((logits - expected) ** 2)) / np.std(expected)
            same = np.mean(logits.argmax(axis=1) == expected.argmax(axis=1))
            found.append(Compressed(weights, cache, weight_bytes(version),
                                    kv.num_bytes / (kv.num_blocks * BLOCK), float(change),
                                    float(same)))
    return found


def with_weights(model: GPT, name: str) -> GPT:
    """A copy of `model` whose weights have the precision of this name in WEIGHTS."""
    changed, precision = copy.deepcopy(model), WEIGHTS[name]
    changed.make_slabs(model.slabs[0].data)
    if precision is not None:
        quantize(changed, *precision)           # in place
    return changed


def weight_bytes(model: GPT) -> int:
    """The bytes of all weights, quantized or not."""
    quantized = [m.quantized.nbytes for _, m in model.named_modules()
                 if isinstance(m, QuantizedLayer)]
    return sum(quantized) + sum(p.data.nbytes for p in model.parameters())


def decoded_logits(model: GPT, cache: PagedKVCache, ids: np.ndarray) -> np.ndarray:
    """The logits (t, V) after each of the tokens, computed one by one from the cache."""
    table = range(cache.num_blocks)
    steps = [SequenceInput([int(token)], i, table) for i, token in enumerate(ids)]
    return np.concatenate([to_host(forward_over_cache(model, cache, [each]).data)
                           for each in steps])
