"""The online softmax: attention over some of the keys, then over more, without all scores at once.

    keys 0 … 63    ─▶ attend ─▶ out, maximum, sum ┐
    keys 64 … 127  ─▶ attend ─▶ out, maximum, sum ┴─▶ merge ─▶ … ─▶ finish ─▶ out / sum, log-sum-exp

With m the larger maximum of two parts,

    sum = sum₁ e^(m₁ - m) + sum₂ e^(m₂ - m)        out = out₁ e^(m₁ - m) + out₂ e^(m₂ - m)

so only exponents ≤ 0 occur.  Milakov & Gimelshein 2018; Dao et al. 2022 (FlashAttention).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..backend import Array, row_sum
from .ops.attention import MASKED


class Partial(NamedTuple):
    """Attention over some keys, not yet divided by its sum: out (…, n), maximum and sum (…, 1)."""

    out: Array
    maximum: Array
    sum: Array


def no_keys(q: Array) -> Partial:
    """The attention of q (…, n) over no keys: the start of a sum by `merge`."""
    rows = (*q.shape[:-1], 1)
    return Partial(np.zeros_like(q), np.full_like(np.empty(rows, q.dtype, like=q), MASKED),
                   np.zeros(rows, q.dtype, like=q))


def masked_scores(q: Array, k: Array, hidden: Array | None = None) -> Array:
    """The scores (…, queries, keys) of q (…, queries, n) and k (…, keys, n).

    q is divided by √n already.  `hidden` (…, queries, m) is true where a query must not see one of
    the last m keys: that score becomes so low that its weight is 0.  None hides no key.
    """
    scores = q @ k.swapaxes(-1, -2)
    if hidden is not None:
        last = scores[..., scores.shape[-1] - hidden.shape[-1]:]
        masked = max(MASKED, float(np.finfo(scores.dtype).min) / 2)     # float16 ends at -65504
        last[...] = np.where(hidden, masked, last)
    return scores


def attend(q: Array, k: Array, v: Array, hidden: Array | None = None,
           drop: Callable[[Array], Array] | None = None) -> Partial:
    """The attention of q (…, queries, n) over these keys and values (…, keys, n) alone.

    q and `hidden` are as in `masked_scores`.  `drop` applies dropout to the weights of the values,
    and leaves the sum as it is.
    """
    weights = masked_scores(q, k, hidden)
    maximum = weights.max(axis=-1, keepdims=True)
    weights -= maximum
    np.exp(weights, out=weights)
    total = row_sum(weights)
    if drop is not None:
        weights = drop(weights)
    return Partial(weights @ v, maximum, total)


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over the keys of `a` and `b` together: the online softmax."""
    maximum = np.maximum(a.maximum, b.maximum)
    scale_a, scale_b = np.exp(a.maximum - maximum), np.exp(b.maximum - maximum)
    return Partial(a.out * scale_a + b.out * scale_b, maximum, a.sum * scale_a + b.sum * scale_b)


def finish(total: Partial) -> tuple[Array, Array]:
    """The attention (…, n) and ln Σ exp(score) (…, 1), of parts in float32 or float64.

    They are 0 and -∞ for a query that sees no key.
    """
    sees_none = total.maximum <= MASKED / 2
    divisor = np.where(sees_none, 1, total.sum)
    lse = np.where(sees_none, -np.inf, total.maximum + np.log(divisor))
    return np.where(sees_none, 0, total.out) / divisor, lse
