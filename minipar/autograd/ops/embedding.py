"""Words and positions: rows of a table, picked by their numbers; rotary positions.

Rotary positions turn queries and keys, so that their product depends on their distance:

    pair (x₁, x₂) of a head at position i, with frequency f      ─▶  turned by the angle i f

    y₁ = x₁ cos - x₂ sin        Pairs are the halves of a head, (0, n/2), (1, n/2 + 1), …, as in
    y₂ = x₂ cos + x₁ sin        Hugging Face's files; in Meta's they are (0, 1), (2, 3), …

Turning is orthogonal, so backward turns by the opposite angle.
Rotary: Su et al. 2021 (RoFormer), equation 34.
"""

import numpy as np

from ...backend import Array, as_rows, check_ids, scatter_add
from ..function import Function
from ..saved import unchanging
from ..tensor import Tensor


class Embedding(Function):
    """y = table[ids];  dtable = rows of g added up by id."""

    expects = "a table (rows, width) and an array of row numbers"

    def flops(ctx, out, table, ids):
        return 0, [out.size, 0]

    def forward(ctx, table, ids):
        if table.ndim != 2:
            raise ValueError("the table has two axes")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"ids are row numbers: integers, not {ids.dtype}")
        check_ids(ids, table.shape[0], "ids")
        ctx.save(ids)
        ctx.shape = table.shape
        return np.take(table, ids, axis=0)

    def backward(ctx, g):
        (ids,), shape = ctx.saved, ctx.shape
        return [lambda: scatter_add(as_rows(g), ids().reshape(-1), shape), None]


class Rotary(Function):
    """The first `num_heads` heads of x (batch, time, heads n), turned; the rest stays as it is."""

    expects = "x (batch, time, heads · n) with even n; cos and sin (batch or 1, time, n/2)"

    def flops(ctx, out, x):
        turned = 3 * out.size // out.shape[-1] * ctx.width
        return turned, [turned]

    def forward(ctx, x, cos, sin, num_heads):
        half = cos.shape[-1]
        ctx.width = 2 * half * num_heads
        if x.ndim != 3 or ctx.width > x.shape[-1] or cos.shape[1] != x.shape[1]:
            raise ValueError(f"{num_heads} heads of width {2 * half} at {cos.shape[1]} positions")
        ctx.num_heads = num_heads
        ctx.save(unchanging(cos), unchanging(sin))
        return turn(x, cos, sin, num_heads)

    def backward(ctx, g):
        (cos, sin), num_heads = ctx.saved, ctx.num_heads
        return [lambda: turn(g, cos(), -sin(), num_heads)]


def turn(x: Array, cos: Array, sin: Array, num_heads: int) -> Array:
    """A copy of x (batch, time, heads · n) whose first heads are turned."""
    half = cos.shape[-1]
    y = x.copy()
    width = 2 * half * num_heads
    old, new = (a[:, :, :width].reshape(*a.shape[:2], num_heads, 2, half) for a in (x, y))
    cos, sin = cos[:, :, None], sin[:, :, None]
    new[:, :, :, 0] = old[:, :, :, 0] * cos - old[:, :, :, 1] * sin
    new[:, :, :, 1] = old[:, :, :, 1] * cos + old[:, :, :, 0] * sin
    return y


def embedding(table: Tensor, ids: Array) -> Tensor:
    """Rows of the table (rows, width), picked by ids (...) → (..., width)."""
    return Embedding.apply(table, Tensor(ids))      # ids are data, and so the result is no weight


def rotary(x: Tensor, cos: Array, sin: Array, num_heads: int) -> Tensor:
    """x (batch, time, heads · n) with the first `num_heads` heads turned.

    `cos` and `sin` (batch or 1, time, n/2) are those of the angles of each position.
    """
    return Rotary.apply(x, cos=cos, sin=sin, num_heads=num_heads)
