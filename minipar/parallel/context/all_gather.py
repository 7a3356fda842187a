"""The specification of ring attention: gather all keys and values, then attend.

    forward    k, v of all ranks ◀─ all-gather      this rank's queries ─▶ all keys
    backward   the same all-gather again, then      dk, dv of all keys ─▶ reduce-scatter

It sends the same bytes as the ring, and needs room for all keys; no message hides behind work.
Llama 3 was trained in this way (Dubey et al. 2024, section 3.3.2): with few heads of keys and
values the messages are small.
"""

import math
from collections.abc import Sequence

import numpy as np

from ...autograd.online_softmax import finish, no_keys
from ...backend import Array, asarray_like
from ...comm import Communicator, collectives
from ...number_formats import Format
from ..wire_formats.low_precision import decode, encode
from .blocks import (
    AttentionDropout,
    attend_block,
    attend_block_backward,
    count_flops,
    reporting,
    rows_for_backward,
)
from .mask import AttentionMask
from .token_order import sorting

TOKENS = -2         # the axis of q, k and v


def gather_keys(comm: Communicator, k: Array, v: Array, positions: Sequence[np.ndarray],
                fmt: Format | None) -> Array:
    """k and v of all ranks, (2, b, kv heads, 1, t, n), in the order of the sequence."""
    message = encode(np.stack([k, v]), fmt)
    kv = decode(collectives.all_gather(comm, message, TOKENS, algorithm="ring",
                                       counts=[len(each) for each in positions]), fmt)
    return np.take(kv, asarray_like(sorting(positions), kv), axis=TOKENS)


def all_gather_attention(comm: Communicator, q: Array, k: Array, v: Array,
                         positions: Sequence[np.ndarray], mask: AttentionMask,
                         dropout: AttentionDropout | None = None,
                         fmt: Format | None = None) -> tuple[Array, Array]:
    """The results of `ring_attention`, by an all-gather.  Collective."""
    kv, keys = gather_keys(comm, k, v, positions, fmt), np.sort(np.concatenate(positions))
    tiles = [*mask.tiles(positions[comm.rank], keys)]
    flops, _ = count_flops(q, tiles, dropout is not None)
    total = no_keys(q)
    with reporting("forward", flops + 2 * q.size + 2 * total.sum.size, q, kv):
        attend_block(total, q * (1 / math.sqrt(q.shape[-1])), kv, tiles, keys, dropout)
        return finish(total)


def all_gather_attention_backward(
        comm: Communicator, g: Array, q: Array, k: Array, v: Array, out: Array, lse: Array,
        positions: Sequence[np.ndarray], mask: AttentionMask,
        dropout: AttentionDropout | None = None,
        fmt: Format | None = None) -> tuple[Array, Array, Array]:
    """The results of `ring_attention_backward`, by all-gather and reduce-scatter.  Collective."""
    kv, keys = gather_keys(comm, k, v, positions, fmt), np.sort(np.concatenate(positions))
    dq, dkv, shrink = np.zeros_like(q), np.zeros_like(kv), 1 / math.sqrt(q.shape[-1])
    tiles = [*mask.tiles(positions[comm.rank], keys)]
    _, flops = count_flops(q, tiles, dropout is not None)
    with reporting("backward", flops + 4 * q.size, q, g, kv):
        d, lse = rows_for_backward(g, out, lse)
        attend_block_backward(g, d, lse, q * shrink, kv, tiles, keys, dq, dkv, dropout)
        dq *= shrink
    by_rank = np.take(dkv, asarray_like(np.concatenate(positions), dkv), axis=TOKENS)
    dkv = decode(collectives.reduce_scatter(
        comm, encode(by_rank, fmt), TOKENS, "sum" if fmt is None else fmt.add, "ring",
        [len(each) for each in positions]), fmt)
    return dq, dkv[0], dkv[1]
