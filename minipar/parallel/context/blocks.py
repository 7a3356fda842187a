"""Attention of one block of queries to one block of keys, and its backward, on arrays.

    forward     S = q kᵀ/√n      merge(total, attend(block))     for one block after the other
                                 o, lse = finish(total)          lse = ln Σ exp S over all keys
    backward    P = exp(S - lse)                                 the final lse: P is then the whole
                dv += Pᵀ dO    dS = P (dO vᵀ - D)                softmax's, whatever block it is
                dq += dS k     dk += dSᵀ q        D = Σ dO · O

No probabilities are kept.  Backward computes them again from q, k and the lse, one number a query.
q (b, kv heads, group, queries, n) is already divided by √n; kv is (2, b, kv heads, 1, keys, n).
Dao et al. 2022 (FlashAttention); Liu et al. 2023 (arXiv 2310.01889).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from ...autograd.meter import current_meter
from ...autograd.online_softmax import Partial, attend, masked_scores, merge
from ...autograd.ops.attention import MASKED
from ...backend import Array, asarray_like, row_dot
from .mask import Tile


class AttentionDropout(NamedTuple):
    """The mask (b, kv heads, group, queries, t) of probabilities to keep, for keys by position."""

    keep: Array
    scale: float            # of those that are kept

    def apply(self, weights: Array, tile: Tile, keys: np.ndarray) -> Array:
        """The `weights` of a tile, dropped or scaled up; `keys` are its keys' positions."""
        positions = asarray_like(keys[:tile.num_keys], self.keep)
        return weights * self.keep[..., tile.rows, :][..., positions] * self.scale


def hidden_keys(tile: Tile, like: Array) -> Array | None:
    """The `hidden` of a tile for all heads, (b or 1, 1, 1, rows, m), on the device of `like`."""
    return None if tile.hidden is None else asarray_like(tile.hidden[:, None, None], like)


def scores_of(q: Array, k: Array, tile: Tile) -> Array:
    """The scores of a tile (b, kv heads, group, rows, keys), hidden ones very small."""
    return masked_scores(q[..., tile.rows, :], k[..., :tile.num_keys, :], hidden_keys(tile, q))


def attend_block(total: Partial, q: Array, kv: Array, tiles: Iterable[Tile], keys: np.ndarray,
                 dropout: AttentionDropout | None = None) -> None:
    """Merge attention to one block kv of keys and values, at positions `keys`, into `total`."""
    k, v = kv
    for tile in tiles:
        rows, cols = (..., tile.rows, slice(None)), (..., slice(tile.num_keys), slice(None))
        drop = None if dropout is None else partial(dropout.apply, tile=tile, keys=keys)
        part = attend(q[rows], k[cols], v[cols], hidden_keys(tile, q), drop)
        before = Partial(*[array[rows] for array in total])
        for array, merged in zip(before, merge(before, part)):
            array[...] = merged


def attend_block_backward(g: Array, d: Array, lse: Array, q: Array, kv: Array,
                          tiles: Iterable[Tile], keys: np.ndarray, dq: Array, dkv: Array,
                          dropout: AttentionDropout | None = None) -> None:
    """Add to dq and to dkv what one block of keys contributes; dq lacks the factor 1/√n.

    `lse` and d = Σ g · out (b, kv heads, group, queries, 1) belong to the softmax over all keys.
    """
    (k, v), (dk, dv) = kv, dkv
    for tile in tiles:
        rows, cols = (..., tile.rows, slice(None)), (..., slice(tile.num_keys), slice(None))
        p = scores_of(q, k, tile)
        p -= lse[rows]
        np.exp(p, out=p)
        ds = g[rows] @ v[cols].swapaxes(-1, -2)
        used = p
        if dropout is not None:
            used, ds = (dropout.apply(each, tile, keys) for each in (p, ds))
        ds -= d[rows]
        ds *= p
        dq[rows] += ds @ k[cols]
        dk[cols] += sum_of_group(ds.swapaxes(-1, -2) @ q[rows])
        dv[cols] += sum_of_group(used.swapaxes(-1, -2) @ g[rows])


def sum_of_group(x: Array) -> Array:
    """The sum over the heads of queries that share a head of keys and values."""
    return x if x.shape[2] == 1 else np.sum(x, axis=2, keepdims=True)


def rows_for_backward(g: Array, out: Array, lse: Array) -> tuple[Array, Array]:
    """(D = Σ g · out, lse), with an lse of ∞ for queries that see no key: their P is 0."""
    return row_dot(g, out), np.where(lse < MASKED, np.inf, lse)


def count_flops(q: Array, tiles: Iterable[Tile], has_dropout: bool) -> tuple[int, int]:
    """FLOPs of `attend_block` and of `attend_block_backward`, as `autograd/meter.py` counts them.
    """
    batch, kv_heads, group, _, n = q.shape
    forward = backward = 0
    for tile in tiles:
        num_rows = tile.rows.stop - tile.rows.start
        pairs, sums = group * num_rows * tile.num_keys, tile.num_keys * n
        forward += pairs * (4 * n + 4 + 2 * has_dropout) + group * num_rows * (3 * n + 8)
        backward += (pairs * (10 * n + 4 + 4 * has_dropout) + group * num_rows * n
                     + 2 * sums * (group + 1 if group > 1 else 1))
    return batch * kv_heads * forward, batch * kv_heads * backward


@contextmanager
def reporting(phase: str, flops: int, *arrays: Array) -> Iterator[None]:
    """Context of some work that is reported to the meter, if one runs."""
    meter = current_meter()
    if meter is None:
        yield
        return
    started = meter.start()
    yield
    meter.stop(started, "ContextAttention", phase, flops, arrays)
