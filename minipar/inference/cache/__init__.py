"""Keys and values of computed tokens, as arrays: the cache knows no requests.

    token_batch.py       the new tokens of one step, of all sequences, end to end
    contiguous.py        a block of the whole context for each sequence: the specification
    paged_attention.py   attention over blocks that a table names
    paged.py             the arrays: write, copy, swap
    quantized.py         a paged cache in 8 bits: a scale for each block and head

Read them in this order.
"""

from .contiguous import ContiguousKVCache
from .paged import KVSizes, PagedKVCache
from .quantized import QuantizedKVCache
from .token_batch import SequenceInput, TokenBatch

# the paged caches by name: the choices of --cache
CACHES: dict[str, type[PagedKVCache]] = {"full": PagedKVCache, "int8": QuantizedKVCache}

__all__ = ["CACHES", "ContiguousKVCache", "KVSizes", "PagedKVCache", "QuantizedKVCache",
           "SequenceInput", "TokenBatch"]
