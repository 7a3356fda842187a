"""The contiguous cache: each sequence has one block of `context` slots.

    block 0  A A A A A · · · · · · · · · · ·       room for the longest possible sequence:
    block 1  B B · · · · · · · · · · · · · ·       a slot without a token (·) is wasted

Caches were laid out like this before paged ones.  This one is the specification of the paged cache:
both give the same attention.  A block holds the whole context, so a sequence's table has one entry.
"""

import numpy as np

from ...backend import Array
from .paged import KVSizes, PagedKVCache
from .paged_attention import gathered_attention
from .token_batch import TokenBatch


class ContiguousKVCache(PagedKVCache):
    """Keys and values of `num_sequences` sequences of at most `context` tokens."""

    def __init__(self, sizes: KVSizes, num_sequences: int, context: int, like: Array):
        super().__init__(sizes, num_sequences, context, like)

    def attend(self, layer: int, batch: TokenBatch, q: Array, k: Array, v: Array) -> Array:
        """Write the new keys and values (T, kv heads, n); return the attention of q (T, h, n)."""
        parts, end = [], 0
        for tokens, start, (block, *_) in batch.inputs:
            begin, end, length = end, end + len(tokens), start + len(tokens)
            keys, values = self.data[0, layer, block], self.data[1, layer, block]
            keys[start:length], values[start:length] = k[begin:end], v[begin:end]
            parts.append(gathered_attention(q[begin:end], keys[:length], values[:length]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
