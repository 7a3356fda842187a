"""Attention of new tokens over keys and values that lie in blocks, wherever a table says.

    table of A: [7, 2]         pool of blocks    0 1 2 3 4 5 6 7
                                                     ▲         ▲
    q of A ── block 7: scores ─▶ max, sum, out ┐  A's second   A's first
           └─ block 2: scores ─▶ max, sum, out ┴─▶ merged: the softmax over both

Only a tile of blocks is gathered at a time, for all sequences at once.  The parts are merged by the
online softmax: with m the larger maximum,

    out = (out₁ e^(m₁ - m) + out₂ e^(m₂ - m)) / (sum₁ e^(m₁ - m) + sum₂ e^(m₂ - m))

`gathered_attention` is the specification: one sequence, all its blocks gathered, plain softmax.
Kwon et al. 2023, section 4.1; Milakov & Gimelshein 2018 (online softmax).
"""

import math
from typing import NamedTuple

import numpy as np

from ...autograd.ops.attention import MASKED
from ...backend import Array
from .rows import RowBatch

TILE = 256          # keys of each sequence that are gathered at a time, at least one block


class Partial(NamedTuple):
    """Attention over some keys, not yet divided by its sum: out (…, n), maximum and sum (…, 1)."""

    out: Array
    maximum: Array
    sum: Array


def gathered_attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Attention of the last queries of one sequence: q (t, h, n) over k, v (length, kv heads, n).

    Query i sees the keys up to length - t + i.  Returns out (t, h, n) and the logarithm of each
    softmax's denominator (t, h).
    """
    (t, heads, n), (length, kv_heads, _) = q.shape, k.shape
    k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
    scores = np.einsum("thn,lhn->thl", q, k) / math.sqrt(n)
    visible = np.arange(length) <= length - t + np.arange(t)[:, None]
    scores = np.where(visible[:, None], scores, -np.inf)
    maximum = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    total = np.sum(weights, axis=-1, keepdims=True)
    return np.einsum("thl,lhn->thn", weights / total, v), (np.log(total) + maximum)[..., 0]


def paged_attention(q: Array, k_cache: Array, v_cache: Array, batch: RowBatch,
                    tile: int = TILE) -> tuple[Array, Array]:
    """Attention of the tokens of `batch` (T, h, n) over caches (blocks, block size, kv heads, n).

    The keys and values of these tokens must be in the cache already.  Returns out (T, h, n) and
    the logarithm of each softmax's denominator (T, h).
    """
    out = np.empty_like(q)
    lse = np.empty_like(q, shape=q.shape[:2])
    kv_heads, n = k_cache.shape[2:]
    for members, tokens in batch.groups:
        num_seqs, num_queries = tokens.shape
        grouped = q[tokens].reshape(num_seqs, num_queries, kv_heads, -1, n)
        grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(num_seqs, kv_heads, -1, n)
        lengths = batch.lengths[members]
        limits = lengths[:, None] - num_queries + 1 + np.arange(num_queries)    # keys seen: (S, t)
        found = _attend_tiles(grouped / math.sqrt(n), k_cache, v_cache, batch.tables[members],
                              lengths, limits, tile)
        shape = (num_seqs, kv_heads, -1, num_queries)
        result = (found.out / found.sum).reshape(*shape, n).transpose(0, 3, 1, 2, 4)
        denominator = (np.log(found.sum) + found.maximum).reshape(shape).transpose(0, 3, 1, 2)
        out[tokens] = result.reshape(num_seqs, num_queries, -1, n)
        lse[tokens] = denominator.reshape(num_seqs, num_queries, -1)
    return out, lse


def _attend_tiles(q: Array, k_cache: Array, v_cache: Array, tables: np.ndarray,
                  lengths: np.ndarray, limits: np.ndarray, tile: int) -> Partial:
    """Attention of q (S, kv heads, group · t, n) over all blocks of the tables, tile by tile."""
    block_size = k_cache.shape[1]
    num_blocks = max(1, tile // block_size)
    longest = -(-int(lengths.max()) // block_size)
    total: Partial | None = None
    for first in range(0, longest, num_blocks):
        blocks = tables[:, first:min(first + num_blocks, longest)]      # (S, blocks of the tile)
        k, v = (cache[blocks].reshape(len(blocks), -1, *cache.shape[2:])
                for cache in (k_cache, v_cache))                        # (S, keys, kv heads, n)
        keys = first * block_size + np.arange(k.shape[1])
        v[keys >= lengths[:, None]] = 0         # slots without a token may hold NaN, and 0 · NaN is
        visible = keys < limits[..., None]                              # (S, t, keys)
        part = _attend(q, k, v, visible)
        total = part if total is None else merge(total, part)
    assert total is not None
    return total


def _attend(q: Array, k: Array, v: Array, visible: np.ndarray) -> Partial:
    """Attention over one tile, for each sequence: k, v (S, keys, kv heads, n)."""
    scores = q @ k.transpose(0, 2, 3, 1)                                # (S, kv, group · t, keys)
    by_query = scores.reshape(*scores.shape[:2], -1, *visible.shape[1:])
    by_query = np.where(visible[:, None, None], by_query, MASKED)       # also instead of NaN
    scores = by_query.reshape(scores.shape)
    maximum = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    return Partial(weights @ v.transpose(0, 2, 1, 3), maximum,
                   np.sum(weights, axis=-1, keepdims=True))


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over the keys of both: the online softmax."""
    maximum = np.maximum(a.maximum, b.maximum)
    scale_a, scale_b = np.exp(a.maximum - maximum), np.exp(b.maximum - maximum)
    return Partial(a.out * scale_a + b.out * scale_b, maximum, a.sum * scale_a + b.sum * scale_b)
