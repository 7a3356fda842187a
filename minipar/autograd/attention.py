"""Scaled-dot-product attention: softmax(q kᵀ / √d) v for every head (Vaswani et al. 2017, eq. 1).

    heads of q:    0 1  2 3  4 5     In grouped-query attention several heads of q share one head of
                   └┬┘  └┬┘  └┬┘     k and v (Ainslie et al. 2023); with as many heads of k and v as
    heads of k, v:  0    1    2      of q it is ordinary multi-head attention.

Inside, q is (batch, kv heads, group, queries, d) and k, v are (batch, kv heads, 1, keys, d).  A
cache-sized piece of the batch at a time goes through the whole chain.  Saves the probabilities.
"""

import math

import numpy as np

from ..backend import Array, blocks
from .engine import Function, Tensor
from .normalize import row_dot, row_sum

MASKED = -1e30      # exp(MASKED - max) is 0 in float32 and float64


def _attend(q: Array, k: Array, v: Array, out: Array, keep: Array | None, causal: bool,
            scale: float) -> Array:
    """Fill `out`, of the shape of q, with the attention; return the probabilities.

    `keep` is a dropout mask of the shape of the probabilities, whose survivors grow by `scale`.
    """
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    p = np.empty_like(q, shape=(*q.shape[:-1], num_keys))
    future = np.full_like(q, MASKED, shape=(num_queries, num_keys))
    future = np.triu(future, 1 + num_keys - num_queries)    # the last query sees every key
    shrink = 1 / math.sqrt(q.shape[-1])
    for p_, q_, k_, v_, out_, keep_ in blocks(p, q, k, v, out, p if keep is None else keep):
        np.matmul(q_ * shrink, k_.swapaxes(-1, -2), out=p_)
        if causal:
            p_ += future
        p_ -= np.max(p_, axis=-1, keepdims=True)
        np.exp(p_, out=p_)
        p_ /= row_sum(p_)
        np.matmul(p_ if keep is None else p_ * keep_ * scale, v_, out=out_)
    return p


def _attend_backward(g: Array, q: Array, k: Array, v: Array, p: Array, keep: Array | None,
                     scale: float, dq: Array, dk: Array, dv: Array) -> None:
    """Fill dq, dk, dv.  With P the probabilities and S = q kᵀ/√d:

    dv = Pᵀ g,   dP = g vᵀ,   dS = P (dP - Σ dP P),   dq = dS k/√d,   dk = dSᵀ q/√d.
    """
    group = q.shape[2]
    shrink = 1 / math.sqrt(q.shape[-1])

    def shared(product: Array) -> Array:
        """Heads of q that share a head of k and v add up their gradients."""
        return np.sum(product, axis=2, keepdims=True)

    for g_, q_, k_, v_, p_, keep_, dq_, dk_, dv_ in blocks(
            g, q, k, v, p, p if keep is None else keep, dq, dk, dv):
        ds = g_ @ v_.swapaxes(-1, -2)
        used = p_
        if keep is not None:
            used = p_ * keep_ * scale
            ds *= keep_
            ds *= scale
        ds -= row_dot(ds, p_)
        ds *= p_
        ds *= shrink
        np.matmul(ds, k_, out=dq_)
        if group == 1:
            np.matmul(used.swapaxes(-1, -2), g_, out=dv_)
            np.matmul(ds.swapaxes(-1, -2), q_, out=dk_)
        else:
            dv_[...] = shared(used.swapaxes(-1, -2) @ g_)
            dk_[...] = shared(ds.swapaxes(-1, -2) @ q_)


def _count_flops(out_size: int, num_keys: int) -> tuple[int, int]:
    """Two products forward (q kᵀ, P v), four backward; the masked half is computed all the same."""
    return 4 * out_size * num_keys, 8 * out_size * num_keys


class Attention(Function):
    """softmax(q kᵀ / √d) v of separate q, k and v."""

    rule = "q (batch, heads, queries, d); k, v (batch, kv heads, keys, d), kv heads dividing heads"

    @staticmethod
    def flops(ctx, out, q, k, v, keep):
        forward, backward = _count_flops(out.size, k.shape[2])
        return forward, [backward, 0, 0, 0]     # done at once: counted with q

    @staticmethod
    def _grouped(q, k, v):
        kv_heads = k.shape[1]
        q = q.reshape(q.shape[0], kv_heads, q.shape[1] // kv_heads, *q.shape[2:])
        return q, k[:, :, None], v[:, :, None]

    @staticmethod
    def forward(ctx, q, k, v, keep, causal, rate):
        if (any(a.ndim != 4 for a in (q, k, v)) or q.shape[1] % k.shape[1] or k.shape != v.shape
                or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3])):
            raise ValueError("shapes do not fit together")
        if causal and q.shape[2] > k.shape[2]:
            raise ValueError("causal attention needs at least as many keys as queries")
        ctx.scale = 1 / (1 - rate)
        out = np.empty_like(q)
        q_, k_, v_ = Attention._grouped(q, k, v)
        p_shape = (*q_.shape[:-1], k.shape[2])
        keep = None if keep is None else keep.reshape(p_shape)
        p = _attend(q_, k_, v_, out.reshape(q_.shape), keep, causal, ctx.scale)
        ctx.save(q, k, v, p, keep)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, p, keep = [saved() for saved in ctx.saved]
        dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
        q_, k_, v_ = Attention._grouped(q, k, v)
        dq_, dk_, dv_ = Attention._grouped(dq, dk, dv)
        _attend_backward(g.reshape(q_.shape), q_, k_, v_, p, keep, ctx.scale, dq_, dk_, dv_)
        return [dq, dk, dv, None]


class FusedAttention(Function):
    """The same on the output of one linear layer: qkv (batch, time, (heads + 2 kv heads) d).

    No copy to split q, k and v, none to join their gradients: all are views of one array.
    """

    rule = "qkv (batch, time, (heads + 2 · kv heads) · d), kv heads dividing heads"

    @staticmethod
    def flops(ctx, out, qkv, keep):
        forward, backward = _count_flops(out.size, qkv.shape[1])
        return forward, [backward, 0]

    @staticmethod
    def _split(qkv, heads, kv_heads):
        """Views q (batch, kv heads, group, time, d) and k, v (batch, kv heads, 1, time, d)."""
        batch, time, width = qkv.shape
        d = width // (heads + 2 * kv_heads)
        ends = (0, heads * d, (heads + kv_heads) * d, width)
        groups = (heads // kv_heads, 1, 1)
        return [qkv[:, :, start:end].reshape(batch, time, kv_heads, group, d)
                .transpose(0, 2, 3, 1, 4) for start, end, group in zip(ends, ends[1:], groups)]

    @staticmethod
    def forward(ctx, qkv, keep, heads, kv_heads, causal, rate):
        if qkv.ndim != 3 or heads % kv_heads or qkv.shape[2] % (heads + 2 * kv_heads):
            raise ValueError(f"a last axis of {qkv.shape[-1]} is not (heads + 2 kv heads) d for "
                             f"{heads} heads and {kv_heads} kv heads")
        q, k, v = FusedAttention._split(qkv, heads, kv_heads)
        batch, time, d = qkv.shape[0], qkv.shape[1], q.shape[-1]
        ctx.heads, ctx.kv_heads, ctx.scale = heads, kv_heads, 1 / (1 - rate)
        out = np.empty_like(qkv, shape=(batch, time, heads * d))
        out_ = out.reshape(batch, time, kv_heads, heads // kv_heads, d).transpose(0, 2, 3, 1, 4)
        keep = None if keep is None else keep.reshape(*q.shape[:-1], time)
        p = _attend(q, k, v, out_, keep, causal, ctx.scale)
        ctx.save(qkv, p, keep)
        return out

    @staticmethod
    def backward(ctx, g):
        qkv, p, keep = [saved() for saved in ctx.saved]
        dqkv = np.empty_like(qkv)
        q, k, v = FusedAttention._split(qkv, ctx.heads, ctx.kv_heads)
        dq, dk, dv = FusedAttention._split(dqkv, ctx.heads, ctx.kv_heads)
        batch, kv_heads, group, time, d = q.shape
        g_ = g.reshape(batch, time, kv_heads, group, d).transpose(0, 2, 3, 1, 4)
        _attend_backward(g_, q, k, v, p, keep, ctx.scale, dq, dk, dv)
        return [dqkv, None]


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False,
                                 keep: Array | None = None, rate: float = 0.0) -> Tensor:
    """Attention of q (batch, heads, queries, d) to k, v (batch, kv heads, keys, d).

    With `causal` the last query sees all keys, the one before all but the last, and so on.  `keep`
    (batch, heads, queries, keys) is a boolean dropout mask of the given `rate`.
    """
    return Attention.apply(q, k, v, keep, causal=causal, rate=rate)


def fused_attention(qkv: Tensor, heads: int, kv_heads: int | None = None, causal: bool = True,
                    keep: Array | None = None, rate: float = 0.0) -> Tensor:
    """Self-attention of qkv (batch, time, (heads + 2 kv heads) d) → (batch, time, heads d)."""
    return FusedAttention.apply(qkv, keep, heads=heads, kv_heads=kv_heads or heads, causal=causal,
                                rate=rate)
