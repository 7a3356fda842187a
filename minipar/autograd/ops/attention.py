"""Scaled-dot-product attention: softmax(q kᵀ / √d) v for every head (Vaswani et al. 2017, eq. 1).

`attention_by_autograd` is this formula.  `FusedAttention` computes the same, faster.

    heads of q:    0 1  2 3  4 5     In grouped-query attention several heads of q share one head of
                   └┬┘  └┬┘  └┬┘     k and v (Ainslie et al. 2023); with as many heads of k and v as
    heads of k, v:  0    1    2      of q it is ordinary multi-head attention.

Inside, q is (batch, kv heads, group, queries, d) and k, v are (batch, kv heads, 1, keys, d).

    keys     0 ····· 63 64 ··· 127      A causal query sees no later key, so each block of queries
    queries  0 ┌───────┐                goes only with the keys up to its own end.  In long
            63 │ ╲     │                sequences little more than half of all pairs are computed
            64 ├───────┼───────┐        and kept.  A cache-sized piece of the batch at a time goes
           127 │       │ ╲     │        through the whole chain.  The probabilities are saved.
"""

import math

import numpy as np

from ...backend import Array, is_gpu, is_host, l2_blocks, row_dot, row_sum
from ..function import Function
from ..saved import unchanging
from ..tensor import Tensor
from .activations import dropout, softmax
from .elementwise import where

MASKED = -1e30      # exp(MASKED - max) is 0 in float32 and float64
QUERIES = 64        # in a block: fewer save more of the masked half, but make smaller products


def attention_by_autograd(q: Tensor, k: Tensor, v: Tensor, causal: bool = False,
                          keep: Array | None = None, rate: float = 0.0) -> Tensor:
    """Attention of q (batch, heads, queries, d) to k, v (batch, kv heads, keys, d).

    With `causal` the last query sees all keys, the one before all but the last, and so on.  `keep`
    (batch, heads, queries, keys) is a boolean dropout mask of the given `rate`.
    """
    (batch, num_heads, num_queries, d), (num_kv_heads, num_keys) = q.shape, k.shape[1:3]
    shared_by = batch, num_kv_heads, num_heads // num_kv_heads, num_queries
    q = q.reshape(*shared_by, d)
    k, v = (x.reshape(batch, num_kv_heads, 1, num_keys, d) for x in (k, v))
    scores = q @ k.transpose(0, 1, 2, 4, 3) / math.sqrt(d)
    if causal:
        is_seen = np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
        scores = where(is_seen, scores, MASKED)
    p = softmax(scores)
    if keep is not None:
        p = dropout(p, keep.reshape(*shared_by, num_keys), rate)
    return (p @ v).reshape(batch, num_heads, num_queries, d)


def _query_blocks(time: int, causal: bool) -> list[tuple[slice, slice]]:
    """Blocks of queries, each with the keys that its last query sees; one block unless `causal`."""
    if not causal:
        return [(slice(0, time), slice(0, time))]
    ends = [*range(QUERIES, time, QUERIES), time]
    return [(slice(start, end), slice(0, end)) for start, end in zip([0, *ends], ends)]


def _new_probabilities(q: Array, query_blocks: list) -> list[Array]:
    """An array for each block; for a shape-only q, one for the last block, one for all others."""
    shapes = [(*q.shape[:-2], rows.stop - rows.start, cols.stop) for rows, cols in query_blocks]
    if not (is_host(q) or is_gpu(q)) and len(shapes) > 1:
        shapes = [(q.shape[0], sum(map(math.prod, shapes[:-1])) // q.shape[0]), shapes[-1]]
    return [np.empty(shape, q.dtype, like=q) for shape in shapes]


def _blocks_to_compute(query_blocks: list, probabilities: list[Array]) -> list[tuple]:
    """The query blocks with their probabilities; if these are shape-only, the last block alone."""
    if is_host(probabilities[-1]) or is_gpu(probabilities[-1]):
        return list(zip(query_blocks, probabilities))
    return [(query_blocks[-1], probabilities[-1])]


def _attend(q: Array, k: Array, v: Array, out: Array, keep: Array | None, causal: bool,
            scale: float) -> list[Array]:
    """Fill `out`, of the shape of q, with the attention; return the blocks of probabilities.

    `keep` is a dropout mask (…, queries, keys) of the probabilities; those kept are multiplied by
    `scale`.
    """
    shrink = 1 / math.sqrt(q.shape[-1])
    query_blocks = _query_blocks(q.shape[-2], causal)
    future = np.triu(np.full_like(np.empty((QUERIES, QUERIES), q.dtype, like=q), MASKED), 1)
    probabilities = _new_probabilities(q, query_blocks)
    for *pieces, q_, k_, v_, out_, keep_ in l2_blocks(
            *probabilities, q, k, v, out, q if keep is None else keep):
        for (rows, cols), p in _blocks_to_compute(query_blocks, pieces):
            size = p.shape[-2]
            np.matmul(q_[..., rows, :] * shrink, k_[..., cols, :].swapaxes(-1, -2), out=p)
            if causal:
                p[..., cols.stop - size:] += future[:size, :size]
            p -= np.max(p, axis=-1, keepdims=True)
            np.exp(p, out=p)
            p /= row_sum(p)
            used = p if keep is None else p * keep_[..., rows, cols] * scale
            np.matmul(used, v_[..., cols, :], out=out_[..., rows, :])
    return probabilities


def _attend_backward(g: Array, q: Array, k: Array, v: Array, keep: Array | None, causal: bool,
                     scale: float, probabilities: list[Array],
                     dq: Array, dk: Array, dv: Array) -> None:
    """Fill dq, dk, dv.  With P the probabilities, S = q kᵀ/√d, and without dropout:

    dv = Pᵀ g,   dP = g vᵀ,   dS = P (dP - Σ dP P),   dq = dS k/√d,   dk = dSᵀ q/√d.
    """
    shrink = 1 / math.sqrt(q.shape[-1])
    query_blocks = _query_blocks(q.shape[-2], causal)
    for *pieces, g_, q_, k_, v_, keep_, dq_, dk_, dv_ in l2_blocks(
            *probabilities, g, q, k, v, q if keep is None else keep, dq, dk, dv):
        is_first = True         # the last queries come first: they see all keys
        for (rows, cols), p in reversed(_blocks_to_compute(query_blocks, pieces)):
            g_rows, k_cols = g_[..., rows, :], k_[..., cols, :]
            ds = g_rows @ v_[..., cols, :].swapaxes(-1, -2)
            used = p
            if keep is not None:
                mask = keep_[..., rows, cols]
                used = p * mask * scale
                ds *= mask
                ds *= scale
            ds -= row_dot(ds, p)
            ds *= p
            ds *= shrink
            np.matmul(ds, k_cols, out=dq_[..., rows, :])
            _add_product(dv_[..., cols, :], used.swapaxes(-1, -2), g_rows, is_first)
            _add_product(dk_[..., cols, :], ds.swapaxes(-1, -2), q_[..., rows, :], is_first)
            is_first = False


def _add_product(total: Array, a: Array, b: Array, is_first: bool) -> None:
    """Add a b to the gradient of keys or values, summed over the heads of q that share them."""
    if is_first and a.shape[2] == 1:
        np.matmul(a, b, out=total)
        return
    product = a @ b
    if a.shape[2] > 1:
        product = np.sum(product, axis=2, keepdims=True)
    if is_first:
        total[...] = product
    else:
        total += product


def _count_flops(q: Array, causal: bool, has_dropout: bool) -> tuple[int, int]:
    """FLOPs of `_attend` and `_attend_backward` for q (batch, kv heads, group, queries, d).

    Each computed pair of a query and a key takes part in two products forward (q kᵀ, P v) and four
    backward.  Each product costs d multiply-adds; the softmax comes on top.
    """
    batch, kv_heads, group, time, d = q.shape
    sizes = [(rows.stop - rows.start, cols.stop) for rows, cols in _query_blocks(time, causal)]
    pairs = batch * kv_heads * group * sum(size * keys for size, keys in sizes)
    masked = batch * kv_heads * group * causal * sum(size * size for size, _ in sizes)
    keys = sum(keys for _, keys in sizes)
    # dk and dv add each block after the first, and before that the heads of a group.
    sums = 2 * d * batch * kv_heads * (keys - time + (group * keys if group > 1 else 0))
    return (pairs * (4 * d + 5 + 2 * has_dropout) + masked + q.size,
            pairs * (8 * d + 5 + 4 * has_dropout) + sums)


class FusedAttention(Function):
    """`attention_by_autograd` on the output of one linear layer, in one operation.

    qkv is (batch, time, (heads + 2 kv heads) d).  q, k and v are views of it, and their gradients
    views of one array, so nothing is copied to split or join them.
    """

    expects = "qkv (batch, time, (heads + 2 · kv heads) · d), kv heads dividing heads"

    def flops(ctx, out, qkv, keep):
        q, _, _ = FusedAttention.split(qkv, ctx.num_heads, ctx.num_kv_heads)
        forward, backward = _count_flops(q, ctx.causal, keep is not None)
        return forward, [backward, 0]

    @staticmethod
    def split(qkv, num_heads, num_kv_heads):
        """Views q (batch, kv heads, group, time, d) and k, v (batch, kv heads, 1, time, d)."""
        width = qkv.shape[2]
        d = width // (num_heads + 2 * num_kv_heads)
        ends = (0, num_heads * d, (num_heads + num_kv_heads) * d, width)
        return [FusedAttention.heads(qkv[:, :, start:end], num_kv_heads, d)
                for start, end in zip(ends, ends[1:])]

    @staticmethod
    def heads(x, num_kv_heads, d):
        """x (batch, time, heads · d) as (batch, kv heads, group, time, d)."""
        batch, time, width = x.shape
        return (x.reshape(batch, time, num_kv_heads, width // (num_kv_heads * d), d)
                .transpose(0, 2, 3, 1, 4))

    def forward(ctx, qkv, keep, num_heads, num_kv_heads, causal, rate):
        if (qkv.ndim != 3 or num_heads % num_kv_heads
                or qkv.shape[2] % (num_heads + 2 * num_kv_heads)):
            raise heads_error(qkv, num_heads, num_kv_heads)
        q, k, v = FusedAttention.split(qkv, num_heads, num_kv_heads)
        batch, time, d = qkv.shape[0], qkv.shape[1], q.shape[-1]
        ctx.num_heads, ctx.num_kv_heads = num_heads, num_kv_heads
        ctx.causal, ctx.scale = causal, 1 / (1 - rate)
        out = np.empty((batch, time, num_heads * d), qkv.dtype, like=qkv)
        keep = None if keep is None else unchanging(keep).reshape(*q.shape[:-1], time)
        ctx.save(qkv, keep, *_attend(q, k, v, FusedAttention.heads(out, num_kv_heads, d), keep,
                                     causal, ctx.scale))
        return out

    def backward(ctx, g):
        qkv, keep, *probabilities = [saved() for saved in ctx.saved]
        dqkv = np.empty_like(qkv)
        q, k, v = FusedAttention.split(qkv, ctx.num_heads, ctx.num_kv_heads)
        g = FusedAttention.heads(g, ctx.num_kv_heads, q.shape[-1])
        _attend_backward(g, q, k, v, keep, ctx.causal, ctx.scale, probabilities,
                         *FusedAttention.split(dqkv, ctx.num_heads, ctx.num_kv_heads))
        return [dqkv, None]


def heads_error(qkv: Array, num_heads: int, num_kv_heads: int) -> ValueError:
    """The error for a last axis that is not cut into these heads."""
    return ValueError(f"a last axis of {qkv.shape[-1]} is not (heads + 2 kv heads) d for "
                      f"{num_heads} heads and {num_kv_heads} kv heads")


def fused_attention(qkv: Tensor, num_heads: int, num_kv_heads: int | None = None,
                    causal: bool = True, keep: Array | None = None, rate: float = 0.0) -> Tensor:
    """Self-attention of qkv (batch, time, (heads + 2 kv heads) d) → (batch, time, heads d)."""
    return FusedAttention.apply(qkv, keep, num_heads=num_heads,
                                num_kv_heads=num_kv_heads or num_heads, causal=causal, rate=rate)
