"""The arrays of a paged cache: keys and values of all layers, block by block.

    keys, values (layers, blocks, block size, kv heads, n)     on the device; and on the host, for
                                                               sequences that were swapped out

2 · layers · kv heads · n · itemsize bytes for each token.  Slots without a token hold NaN, so that
a mistake shows.  This file knows no sequences: a Step of the scheduler says what is copied, a
RowBatch where new keys and values go.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...backend import Array, asarray_like, is_host, record_allocation
from ...nn import GPT
from .paged_attention import gather_from, paged_attention
from .rows import RowBatch

Pairs = Sequence[tuple[int, int]]


class KVSizes(NamedTuple):
    """The sizes of the keys and values of one token."""

    num_layers: int
    num_kv_heads: int
    head_width: int

    @classmethod
    def of(cls, model: GPT) -> "KVSizes":
        """The sizes of a model; of this rank's layers and heads, if it is parallel."""
        attention = model.h[0].attn
        columns = attention.num_heads + 2 * attention.num_kv_heads
        return cls(len(model.h), attention.num_kv_heads,
                   attention.c_attn.weight.shape[1] // columns)

    def bytes_per_token(self, itemsize: int) -> int:
        """The bytes of one token's keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_width * itemsize


class PagedKVCache:
    """`num_blocks` blocks of keys and values on the device of `like`, of its dtype."""

    def __init__(self, sizes: KVSizes, num_blocks: int, block_size: int, like: Array,
                 num_host_blocks: int = 0):
        self.sizes, self.block_size = sizes, block_size
        shape = (2, sizes.num_layers, num_blocks, block_size, sizes.num_kv_heads, sizes.head_width)
        self.data = np.full_like(like, np.nan, shape=shape)
        record_allocation("KV cache", self.data)
        self.host = np.full((*shape[:2], num_host_blocks, *shape[3:]), np.nan, like.dtype)

    @property
    def num_bytes(self) -> int:
        """The bytes on the device."""
        return self.data.nbytes

    def apply(self, swapped_out: Pairs, swapped_in: Pairs, copied: Pairs) -> None:
        """Move blocks as a Step says, before anything is written in that step.

        The host's blocks become more if the step needs them.
        """
        self._grow_host(1 + max((new for _, new in swapped_out), default=-1))
        for pairs, source, target in ((swapped_out, self.data, self.host),
                                      (swapped_in, self.host, self.data),
                                      (copied, self.data, self.data)):
            for old, new in pairs:
                content = source[:, :, old]
                if is_host(target) and not is_host(content):
                    content = content.get()
                elif is_host(content) and not is_host(target):
                    content = asarray_like(content, target)
                target[:, :, new] = content

    def _grow_host(self, num_blocks: int) -> None:
        missing = num_blocks - self.host.shape[2]
        if missing > 0:
            more = np.full_like(self.host, np.nan,
                                shape=(*self.host.shape[:2], missing, *self.host.shape[3:]))
            self.host = np.concatenate([self.host, more], axis=2)

    def attend(self, layer: int, batch: RowBatch, q: Array, k: Array, v: Array) -> Array:
        """Write the new keys and values (T, kv heads, n); return the attention of q (T, h, n)."""
        keys, values = self.data[0, layer], self.data[1, layer]
        shape = (-1, *keys.shape[2:])                       # slots, whatever their block
        keys.reshape(shape)[batch.slots], values.reshape(shape)[batch.slots] = k, v
        return paged_attention(q, gather_from(keys, values), self.block_size, batch)
