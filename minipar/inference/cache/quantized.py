"""A paged cache of 8-bit integers: each block has one scale for each head of keys and of values.

    value ≈ code · scale        codes -127 … 127; -128 marks a slot without a token: it reads as NaN

A block fills token by token, and a later token can be larger than the block's scale allows:

    scale ─▶ max(scale, max |new| / 127)        codes of the block are rounded again if it grew

A step between two codes is one scale wide.  Each new scale rounds the block's values once more, by
up to half a step.  If the scale grew g times since a value was written, the value is off by at most
(g + 1)/2 steps of the last scale.  While a block holds the same tokens, its scale never falls; a
new token in slot 0 begins a new scale.

So the codes depend on how many tokens a step of the model computes.  Tokens of one chunk are
rounded once, by a scale that is already large enough for all of them.  With this cache, logits
depend on other requests in a step, the token budget, preemption and prefix caching.  These change a
logit by about as much as the cache's rounding does, and now and then they change a token.

    bytes of a block, 8 bits      2 · layers · kv heads · (block size · n + 4)
                      float32     2 · layers · kv heads · block size · n · 4

Liu et al. 2024 (KIVI) compare which numbers should share a scale.
"""

import numpy as np

from ...backend import Array
from .paged import KVSizes, PagedKVCache
from .paged_attention import paged_attention
from .token_batch import TokenBatch

LARGEST, EMPTY = 127, -128
TINY = np.finfo(np.float32).tiny        # the least scale: that of a block of zeros


class QuantizedKVCache(PagedKVCache):
    """`num_blocks` blocks of 8-bit keys and values; attention is computed in the dtype of `like`.
    """

    def __init__(self, sizes: KVSizes, num_blocks: int, block_size: int, like: Array,
                 num_host_blocks: int = 0):
        super().__init__(sizes, num_blocks, block_size, like, num_host_blocks,
                         empty=EMPTY, dtype=np.int8)
        self.scales = self.add_pool((sizes.num_kv_heads,), 0, np.float32)

    def attend(self, layer: int, batch: TokenBatch, q: Array, k: Array, v: Array) -> Array:
        """Write the new keys and values (T, kv heads, n); return the attention of q (T, h, n)."""
        for codes, scales, new in zip(self.data[:, layer], self.scales[:, layer], (k, v)):
            write(codes, scales, batch, new)

        def gather(blocks: Array) -> tuple[Array, Array]:
            keys, values = (
                decode(codes.take(blocks, axis=0), scales.take(blocks, axis=0), q.dtype)
                for codes, scales in zip(self.data[:, layer], self.scales[:, layer]))
            shape = (len(blocks), -1, *keys.shape[3:])
            return keys.reshape(shape), values.reshape(shape)
        return paged_attention(q, gather, self.block_size, batch)


def decode(codes: Array, scales: Array, dtype: np.dtype) -> Array:
    """The values of codes (…, block size, kv heads, n) with scales (…, kv heads)."""
    values = codes.astype(dtype) * scales.astype(dtype)[..., None, :, None]
    return np.where(codes == EMPTY, np.nan, values)


def write(codes: Array, scales: Array, batch: TokenBatch, new: Array) -> None:
    """Write the numbers of new tokens (T, kv heads, n) into the blocks that they belong to.

    codes (blocks, block size, kv heads, n), scales (blocks, kv heads).
    """
    touched = batch.touched
    blocks, place = touched.blocks, (touched.owner, touched.slot)
    is_new = touched.begins[:, None]                                # (m, 1)
    old_codes = np.where(is_new[..., None, None], EMPTY, codes[blocks])
    old_scale = np.where(is_new, 0, scales[blocks])                 # (m, kv heads)
    numbers = np.zeros(old_codes.shape, new.dtype, like=new)        # (m, block size, kv heads, n)
    numbers[place] = new
    scale = grown_scale(old_scale, np.abs(numbers).max(axis=(1, 3)))
    changed = requantize(old_codes, old_scale / scale)
    changed[place] = np.rint(numbers / scale[:, None, :, None])[place].astype(np.int8)
    codes[blocks], scales[blocks] = changed, scale


def grown_scale(scale: Array, largest: Array) -> Array:
    """The scale that a block needs when numbers of up to `largest` join it."""
    return np.maximum(np.maximum(scale, (largest / LARGEST).astype(np.float32)), TINY)


def requantize(codes: Array, ratio: Array) -> Array:
    """Codes (m, block size, kv heads, n) for a new scale; `ratio` (m, kv heads) is old / new."""
    rounded = np.rint(codes * ratio[:, None, :, None]).astype(np.int8)
    return np.where(codes == EMPTY, codes, rounded)
