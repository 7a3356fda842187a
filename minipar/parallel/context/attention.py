"""Self-attention whose tokens are spread over ranks, as one differentiable operation."""

from collections.abc import Sequence

import numpy as np

from ...autograd import Function, Tensor
from ...autograd.function import apply_operation_hook
from ...autograd.ops.attention import FusedAttention
from ...backend import Array
from ...comm import Communicator
from ...number_formats import Format
from .all_gather import all_gather_attention, all_gather_attention_backward
from .blocks import AttentionDropout
from .mask import AttentionMask
from .ring import ring_attention, ring_attention_backward

METHODS = {"ring": (ring_attention, ring_attention_backward),
           "all_gather": (all_gather_attention, all_gather_attention_backward)}
CAUSAL = AttentionMask()


class ContextAttention(Function):
    """qkv (b, t/p, (heads + 2 kv heads) n) of this rank's tokens → (b, t/p, heads n).

    Saves qkv, the result and the log-sum-exp of each query and head.
    """

    expects = "qkv (batch, this rank's tokens, (heads + 2 · kv heads) · n), kv heads dividing heads"
    metered = False     # it reports hop by hop, so that messages hide behind the hops

    @staticmethod
    def forward(ctx, qkv, keep, comm, method, positions, mask, num_heads, num_kv_heads, rate,
                fmt):
        if qkv.ndim != 3 or qkv.shape[1] != len(positions[comm.rank]):
            raise ValueError(f"rank {comm.rank} has {len(positions[comm.rank])} tokens of the "
                             "sequence")
        (attend, ctx.backward_of), ctx.comm = METHODS[method], comm
        ctx.heads, ctx.scale = (num_heads, num_kv_heads), 1 / (1 - rate)
        q, k, v = FusedAttention.split(qkv, *ctx.heads)
        dropout = _dropout(keep, q, ctx.scale)
        o, lse = attend(comm, q, k, v, positions, mask, dropout, fmt)
        out = np.empty((*qkv.shape[:2], num_heads * q.shape[-1]), qkv.dtype, like=qkv)
        FusedAttention.heads(out, num_kv_heads, q.shape[-1])[...] = o
        ctx.save(qkv, keep, out, lse)
        ctx.options, ctx.fmt = (positions, mask), fmt
        return out

    @staticmethod
    def backward(ctx, g):
        qkv, keep, out, lse = [saved() for saved in ctx.saved]
        q, k, v = FusedAttention.split(qkv, *ctx.heads)
        dqkv, dropout = np.empty_like(qkv), _dropout(keep, q, ctx.scale)
        g, out = (FusedAttention.heads(x, ctx.heads[1], q.shape[-1]) for x in (g, out))
        found = ctx.backward_of(ctx.comm, g, q, k, v, out, lse, *ctx.options, dropout,
                                ctx.fmt)
        for part, d in zip(FusedAttention.split(dqkv, *ctx.heads), found):
            part[...] = d
        return [dqkv, None]


def _dropout(keep: Array | None, q: Array, scale: float) -> AttentionDropout | None:
    if keep is None:
        return None
    return AttentionDropout(keep.reshape(*q.shape[:-1], keep.shape[-1]), scale)


def context_attention(qkv: Tensor, comm: Communicator, positions: Sequence[np.ndarray],
                      num_heads: int, num_kv_heads: int | None = None, method: str = "ring",
                      mask: AttentionMask = CAUSAL, keep: Array | None = None,
                      rate: float = 0.0, fmt: Format | None = None) -> Tensor:
    """Self-attention of qkv (b, t/p, (heads + 2 kv heads) n) → (b, t/p, heads n).  Collective.

    This rank's tokens are those at positions[rank], which rise on every rank.  `keep` (b, heads,
    t/p, t) is this rank's part of a boolean dropout mask of the given `rate`; its keys are in the
    order of the sequence.  Messages are codes of `fmt`, if given.
    """
    return apply_operation_hook(ContextAttention.apply(
        qkv, keep, comm=comm, method=method, positions=positions, mask=mask, num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads, rate=rate, fmt=fmt))
