"""The floor's causal attention (see `numpy_gpt.py`), a block of queries at a time.

n = b t tokens, d = width, h = heads; qkv is (n, 3d).
"""

import math

import numpy as np

QUERIES = 64        # in a block, which looks only at the keys up to its own end


def heads_of(qkv: np.ndarray, b: int, heads: int, parts: int) -> np.ndarray:
    """(n, parts · d) as `parts` views (b, heads, t, d / heads)."""
    n, width = qkv.shape
    return qkv.reshape(b, n // b, parts, heads, width // parts // heads).transpose(2, 0, 3, 1, 4)


def attention(qkv: np.ndarray, b: int, heads: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """softmax(q kᵀ / √d) v (n, d), and the probabilities of each block of queries."""
    q, k, v = heads_of(qkv, b, heads, 3)
    t, shrink = q.shape[2], 1 / math.sqrt(q.shape[3])
    out = np.empty((len(qkv), qkv.shape[1] // 3), qkv.dtype)
    (y,) = heads_of(out, b, heads, 1)
    future = np.triu(np.full((QUERIES, QUERIES), -1e30, qkv.dtype), 1)
    starts = range(0, t, QUERIES)
    probabilities = [np.empty((b, heads, min(QUERIES, t - start), min(t, start + QUERIES)),
                              qkv.dtype) for start in starts]
    for i in range(b):
        for start, block in zip(starts, probabilities):
            p, size, stop = block[i], block.shape[2], block.shape[3]
            np.matmul(q[i, :, start:stop] * shrink, k[i, :, :stop].swapaxes(1, 2), out=p)
            p[:, :, start:] += future[:size, :size]
            p -= p.max(axis=-1, keepdims=True)
            np.exp(p, out=p)
            p /= np.einsum("hqk->hq", p)[..., None]
            np.matmul(p, v[i, :, :stop], out=y[i, :, start:stop])
    return out, probabilities


def attention_backward(dout: np.ndarray, qkv: np.ndarray, probabilities: list[np.ndarray], b: int,
                       heads: int) -> np.ndarray:
    """dqkv (n, 3d) from dout (n, d), the last block of queries first: it sees every key."""
    q, k, v = heads_of(qkv, b, heads, 3)
    dqkv = np.empty_like(qkv)
    dq, dk, dv = heads_of(dqkv, b, heads, 3)
    (dy,) = heads_of(dout, b, heads, 1)
    for i in range(b):
        for block in reversed(probabilities):
            p, stop = block[i], block.shape[3]
            start = stop - block.shape[2]
            g = dy[i, :, start:stop]
            ds = g @ v[i, :, :stop].swapaxes(1, 2)
            ds -= np.einsum("hqk,hqk->hq", ds, p)[..., None]
            ds *= p
            ds *= 1 / math.sqrt(q.shape[3])
            np.matmul(ds, k[i, :, :stop], out=dq[i, :, start:stop])
            if block is probabilities[-1]:
                np.matmul(p.swapaxes(1, 2), g, out=dv[i])
                np.matmul(ds.swapaxes(1, 2), q[i, :, start:], out=dk[i])
            else:
                dv[i, :, :stop] += p.swapaxes(1, 2) @ g
                dk[i, :, :stop] += ds.swapaxes(1, 2) @ q[i, :, start:stop]
    return dqkv
