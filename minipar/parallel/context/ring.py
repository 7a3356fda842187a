"""Ring attention: queries stay, blocks of keys and values travel around the ring.

    hop            0     1     2     3           rank r computes with block r - i at hop i,
    rank 0 has     kv₀   kv₃   kv₂   kv₁         and while it does, the next block arrives
    rank 1         kv₁   kv₀   kv₃   kv₂
    rank 2         kv₂   kv₁   kv₀   kv₃         forward   p - 1 hops of k, v
    rank 3         kv₃   kv₂   kv₁   kv₀         backward  p - 1 hops of k, v, and of dk, dv

No rank ever holds the keys of the whole sequence, and no probabilities are kept.  A layer keeps q,
k, v, the result and one number a query.  In backward a block's gradient starts on the rank after
its owner, and follows the block.  It comes home with the last hop, where the owner adds its own
part.

    forward    2 (p-1) · b · t/p · kv · n  elements sent by a rank      backward   twice as many

`all_gather_attention` (all_gather.py) is the specification: it sends as many bytes, but overlaps
nothing.
Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889).
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...autograd.online_softmax import finish, no_keys
from ...backend import Array
from ...comm import Communicator, Request
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

KV, GRADIENTS = 0, 1        # tags of the messages


def rotate(comm: Communicator, block: Array, lengths: Sequence[int],
           fmt: Format | None = None) -> Iterator[Array]:
    """The blocks of ranks r, r - 1, r - 2, …: this rank's own first.

    While the caller computes with a block, the block is sent to rank r + 1, and the next one is
    received.  `lengths` are the lengths of axis -2 of all blocks; messages are in format `fmt`.
    """
    p, r, message = comm.size, comm.rank, encode(block, fmt)
    for hop in range(1, p):
        shape = (*block.shape[:-2], lengths[(r - hop) % p], block.shape[-1])
        arriving = np.empty(shape, message.dtype, like=message)
        with comm.labelled("ring_attention"):
            receiving = comm.irecv(arriving, (r - 1) % p, KV)
            sending = comm.isend(message, (r + 1) % p, KV)
        yield block
        sending.wait()
        receiving.wait()
        message, block = arriving, decode(arriving, fmt)
    yield block


def ring_attention(comm: Communicator, q: Array, k: Array, v: Array,
                   positions: Sequence[np.ndarray], mask: AttentionMask,
                   dropout: AttentionDropout | None = None,
                   fmt: Format | None = None) -> tuple[Array, Array]:
    """Attention o, like q, and log-sum-exp (…, 1) of this rank's queries to the keys of all ranks.

    Collective.  q (b, kv heads, group, t/p, n), k and v (b, kv heads, 1, t/p, n) belong to the
    tokens at positions[rank], which are global.  Messages are codes of `fmt`, if given.
    """
    lengths, mine = [len(each) for each in positions], positions[comm.rank]
    with reporting("forward", q.size, q):
        q, total = q * (1 / math.sqrt(q.shape[-1])), no_keys(q)
    for hop, kv in enumerate(rotate(comm, np.stack([k, v]), lengths, fmt)):
        keys = positions[(comm.rank - hop) % comm.size]
        tiles = [*mask.tiles(mine, keys)]
        flops, _ = count_flops(q, tiles, dropout is not None)
        with reporting("forward", flops, q, kv):
            attend_block(total, q, kv, tiles, keys, dropout)
    with reporting("forward", q.size + 2 * total.sum.size, *total):
        return finish(total)


def ring_attention_backward(comm: Communicator, g: Array, q: Array, k: Array, v: Array, out: Array,
                            lse: Array, positions: Sequence[np.ndarray], mask: AttentionMask,
                            dropout: AttentionDropout | None = None,
                            fmt: Format | None = None) -> tuple[Array, Array, Array]:
    """dq, dk and dv for g = do; the other arguments are as in `ring_attention`.  Collective."""
    p, r = comm.size, comm.rank
    lengths, mine = [len(each) for each in positions], positions[r]
    shrink = 1 / math.sqrt(q.shape[-1])
    with reporting("backward", 3 * q.size, q, g, out):
        q, dq = q * shrink, np.zeros_like(q)
        d, lse = rows_for_backward(g, out, lse)
    sends = []
    for hop, kv in enumerate(rotate(comm, np.stack([k, v]), lengths, fmt)):
        coming = begin_recv(comm, kv, fmt) if hop > 1 else None
        keys, dkv = positions[(r - hop) % p], np.zeros_like(kv)
        tiles = [*mask.tiles(mine, keys)]
        _, flops = count_flops(q, tiles, dropout is not None)
        with reporting("backward", flops, q, g, kv):
            attend_block_backward(g, d, lse, q, kv, tiles, keys, dq, dkv, dropout)
        if hop == 0:
            own = dkv
        else:
            sends.append(pass_on(comm, dkv, coming, fmt))
    if p > 1:
        add_received(own, *begin_recv(comm, own, fmt), fmt)
    for request in sends:
        request.wait()
    with reporting("backward", dq.size, dq):
        dq *= shrink
    return dq, own[0], own[1]


def begin_recv(comm: Communicator, like: Array, fmt: Format | None) -> tuple[Array, Request]:
    """Begin to receive a block's gradient from rank r - 1, which added to it one hop before."""
    message = np.empty_like(like, dtype=like.dtype if fmt is None else fmt.dtype)
    with comm.labelled("ring_attention"):
        return message, comm.irecv(message, (comm.rank - 1) % comm.size, GRADIENTS)


def pass_on(comm: Communicator, dkv: Array, coming: tuple[Array, Request] | None,
            fmt: Format | None) -> Request:
    """Add what the ranks before contributed to a block's gradient; begin to send it on."""
    if coming is not None:
        add_received(dkv, *coming, fmt)
    with comm.labelled("ring_attention"):
        return comm.isend(encode(dkv, fmt), (comm.rank + 1) % comm.size, GRADIENTS)


def add_received(dkv: Array, message: Array, request: Request, fmt: Format | None) -> None:
    """Add the gradient in `message` to a block's gradient, once it is there."""
    request.wait()
    with reporting("backward", dkv.size, dkv, message):
        dkv += decode(message, fmt)
