"""The online softmax: attention over some of the keys, then over more, without all scores at once.

    keys 0 … 63    ─▶ out, maximum, sum ┐
    keys 64 … 127  ─▶ out, maximum, sum ┴─▶ merge ─▶ … ─▶ finish ─▶ out / sum, log-sum-exp

With m the larger maximum of two parts,

    sum = sum₁ e^(m₁ - m) + sum₂ e^(m₂ - m)        out = out₁ e^(m₁ - m) + out₂ e^(m₂ - m)

so only exponents ≤ 0 occur.  Milakov & Gimelshein 2018; Dao et al. 2022 (FlashAttention).
"""

from typing import NamedTuple

import numpy as np

from ..backend import Array
from .ops.attention import MASKED


class Partial(NamedTuple):
    """Attention over some keys, not yet divided by its sum: out (…, n), maximum and sum (…, 1)."""

    out: Array
    maximum: Array
    sum: Array


def no_keys(q: Array) -> Partial:
    """The attention of q (…, n) over no keys: what others are merged into."""
    rows = (*q.shape[:-1], 1)
    return Partial(np.zeros_like(q), np.full_like(np.empty(rows, q.dtype, like=q), MASKED),
                   np.zeros(rows, q.dtype, like=q))


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over the keys of both: the online softmax."""
    maximum = np.maximum(a.maximum, b.maximum)
    scale_a, scale_b = np.exp(a.maximum - maximum), np.exp(b.maximum - maximum)
    return Partial(a.out * scale_a + b.out * scale_b, maximum, a.sum * scale_a + b.sum * scale_b)


def finish(total: Partial) -> tuple[Array, Array]:
    """The attention (…, n) and ln Σ exp(score) (…, 1): 0 and -∞ for a query that sees no key."""
    sees_none = total.maximum <= MASKED / 2
    divisor = np.where(sees_none, 1, total.sum)
    lse = np.where(sees_none, -np.inf, total.maximum + np.log(divisor))
    return np.where(sees_none, 0, total.out) / divisor, lse
