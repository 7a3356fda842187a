"""Attention of new tokens over keys and values in blocks; each sequence's table names its blocks.

    table of A: [7, 2]         pool of blocks    0 1 2 3 4 5 6 7
                                                     ▲         ▲
    q of A ── block 7: scores ─▶ max, sum, out ┐  A's second   A's first
           └─ block 2: scores ─▶ max, sum, out ┴─▶ merged: the softmax over both

Only a tile of blocks is gathered at a time, for all sequences with the same number of new tokens.
The parts are merged by the online softmax (`autograd/online_softmax.py`).

`gathered_attention` is the specification: one sequence, all its blocks gathered, plain softmax.
Kwon et al. 2023, section 4.1.
"""

import math
from collections.abc import Callable

import numpy as np

from ...autograd.online_softmax import Partial, attend, merge
from ...backend import Array, asarray_like
from .token_batch import InputGroup, TokenBatch

TILE = 256          # keys of each sequence that are gathered at a time, at least one block

Gather = Callable[[Array], tuple[Array, Array]]     # blocks (S, m) → their keys and values


def gathered_attention(q: Array, k: Array, v: Array) -> Array:
    """Attention (t, h, n) of the queries q (t, h, n) of one sequence's last t tokens.

    Query i sees the keys up to length - t + i of k, v (length, kv heads, n).
    """
    (t, heads, n), (length, kv_heads, _) = q.shape, k.shape
    q = q.reshape(t, kv_heads, -1, n).transpose(1, 2, 0, 3)             # (kv heads, group, t, n)
    scores = q @ k.transpose(1, 2, 0)[:, None]
    scores *= 1 / math.sqrt(n)
    if t > 1:
        hidden = np.arange(length) > length - t + np.arange(t)[:, None]
        scores = np.where(asarray_like(hidden, q), -np.inf, scores)
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(t, heads, n)


def paged_attention(q: Array, gather: Gather, block_size: int, batch: TokenBatch,
                    tile: int = TILE) -> Array:
    """Attention (T, h, n) of the tokens of `batch`, whose queries are q (T, h, n).

    `gather(blocks)` copies the keys of blocks (S, m) into one array and the values into another,
    both (S, m · block size, kv heads, n).  Those of the new tokens must be in the cache already.
    """
    q = q * (1 / math.sqrt(q.shape[2]))
    out = q                                 # results take the place of queries, group by group
    for group in batch.groups:
        found = _attend_group(q[group.tokens], gather, block_size, group, tile)
        out[group.tokens] = _by_token(found.out / found.sum, group)
    return out


def gather_from(k_cache: Array, v_cache: Array) -> Gather:
    """A function that gathers blocks of caches (blocks, block size, kv heads, n)."""
    def gather(blocks: Array) -> tuple[Array, Array]:
        shape = (len(blocks), -1, *k_cache.shape[2:])
        return (k_cache.take(blocks, axis=0).reshape(shape),
                v_cache.take(blocks, axis=0).reshape(shape))
    return gather


def _attend_group(q: Array, gather: Gather, block_size: int, group: InputGroup,
                  tile: int) -> Partial:
    """Attention of q (S t, h, n) over all blocks of the group's tables, tile by tile."""
    tile = max(1, tile // block_size) * block_size
    total: Partial | None = None
    for first in range(0, group.longest, tile):
        stop = min(first + tile, group.longest)
        k, v = gather(group.tables[:, first // block_size:-(-stop // block_size)])
        k, v = k[:, :stop - first], v[:, :stop - first]             # (S, keys, kv heads, n)
        hidden = None
        if stop > group.shortest or group.num_queries > 1:
            keys = asarray_like(np.arange(first, stop), q)
            hidden = np.tile(keys >= group.limits, (1, q.shape[1] // k.shape[2], 1))[:, None]
            v[keys >= group.lengths] = 0        # an empty slot may hold NaN, and 0 · NaN is NaN
        part = attend(_by_head(q, group, k.shape[2]), k.transpose(0, 2, 1, 3),
                      v.transpose(0, 2, 1, 3), hidden)      # hidden: (S, 1, group t, keys)
        total = part if total is None else merge(total, part)
    assert total is not None
    return total


def _by_head(q: Array, group: InputGroup, kv_heads: int) -> Array:
    """q (S t, h, n) → (S, kv heads, group t, n): the queries of each head of keys."""
    if group.num_queries == 1:                                      # in this order already
        return q.reshape(group.num_sequences, kv_heads, -1, q.shape[2])
    q = q.reshape(group.num_sequences, group.num_queries, kv_heads, -1, q.shape[2])
    return q.transpose(0, 2, 3, 1, 4).reshape(group.num_sequences, kv_heads, -1, q.shape[4])


def _by_token(values: Array, group: InputGroup) -> Array:
    """(S, kv heads, group t, m) → (S t, h, m): the inverse of `_by_head`."""
    (num_sequences, kv_heads, queries, width), t = values.shape, group.num_queries
    if t == 1:
        return values.reshape(num_sequences, kv_heads * queries, width)
    values = values.reshape(num_sequences, kv_heads, -1, t, width)
    return values.transpose(0, 3, 1, 2, 4).reshape(num_sequences * t, -1, width)
