"""The arrays of a paged cache: keys and values of all layers, block by block.

    keys, values (layers, blocks, block size, kv heads, n)     on the device; and on the host, for
                                                               sequences that were swapped out

A head's key or value has n numbers, so a token takes 2 · layers · kv heads · n · itemsize bytes.
Slots of the device hold NaN until they are first written, so that a mistake shows.  This file knows
no sequences: the scheduler's ScheduledStep says which blocks are copied, and a TokenBatch says
where new keys and values go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...backend import Array, is_gpu, is_host, record_allocation, to_device_of, to_host
from ...nn import GPT
from .paged_attention import gather_from, paged_attention
from .token_batch import TokenBatch

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
    """`num_blocks` blocks of keys and values on the device of `like`, by default of its dtype.

    A slot holds `empty` until it is written.  Raises TypeError for a `like` without numbers.
    """

    def __init__(self, sizes: KVSizes, num_blocks: int, block_size: int, like: Array,
                 num_host_blocks: int = 0, empty: float = np.nan, dtype: Any = None):
        if not (is_host(like) or is_gpu(like)):
            raise TypeError("a cache of keys and values needs numbers: its bytes without any are "
                            "KVSizes.of(model).bytes_per_token(itemsize) for each token")
        self.sizes, self.block_size = sizes, block_size
        self._like = np.empty(0, like.dtype, like=like)     # a gathered weight may be freed
        self.num_blocks, self._num_host_blocks = num_blocks, num_host_blocks
        self.pools: list[Pool] = []                     # moved block by block
        self.data = self.add_pool((block_size, sizes.num_kv_heads, sizes.head_width), empty,
                                  dtype or like.dtype)

    def add_pool(self, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
        """Make an array (2, layers, blocks, *shape) on the device, and one on the host.

        Returns the one on the device.
        """
        on_device, on_host = ((2, self.sizes.num_layers, num, *shape)
                              for num in (self.num_blocks, self._num_host_blocks))
        device = np.full_like(np.empty(on_device, dtype, like=self._like), value)
        record_allocation("KV cache", device)
        self.pools.append(Pool(device, np.full(on_host, value, dtype)))
        return device

    @property
    def num_bytes(self) -> int:
        """The bytes on the device."""
        return sum(pool.device.nbytes for pool in self.pools)

    def apply(self, swapped_out: Pairs, swapped_in: Pairs, copied: Pairs) -> None:
        """Move blocks as a ScheduledStep says, before anything is written in that step.

        The host gets more blocks if the step needs them.
        """
        for pool in self.pools:
            pool.grow_host(1 + max((new for _, new in swapped_out), default=-1))
            move(pool.device, pool.host, swapped_out)
            move(pool.host, pool.device, swapped_in)
            move(pool.device, pool.device, copied)

    def attend(self, layer: int, batch: TokenBatch, q: Array, k: Array, v: Array) -> Array:
        """Write the new keys and values (T, kv heads, n); return the attention of q (T, h, n)."""
        keys, values = self.data[0, layer], self.data[1, layer]
        shape = (-1, *keys.shape[2:])                       # slots, whatever their block
        keys.reshape(shape)[batch.slots] = k                # a view: blocks are contiguous
        values.reshape(shape)[batch.slots] = v
        return paged_attention(q, gather_from(keys, values), self.block_size, batch)


@dataclass
class Pool:
    """An array of blocks (2, layers, blocks, …) on the device, and one on the host."""

    device: Array
    host: np.ndarray

    def grow_host(self, num_blocks: int) -> None:
        """Make room for at least `num_blocks` blocks on the host."""
        missing = num_blocks - self.host.shape[2]
        if missing > 0:
            more = np.empty((*self.host.shape[:2], missing, *self.host.shape[3:]), self.host.dtype,
                            like=self.host)
            self.host = np.concatenate([self.host, more], axis=2)


def move(source: Array, target: Array, pairs: Pairs) -> None:
    """Copy block `old` of `source` to block `new` of `target`, for all pairs in turn."""
    for old, new in pairs:
        content = source[:, :, old]
        target[:, :, new] = to_host(content) if is_host(target) else to_device_of(content, target)
