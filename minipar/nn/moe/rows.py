"""Rows for experts: each expert multiplies its own rows, and the results go back to their tokens.

    x (n, d) ── embedding ──▶ rows (m, d) ── grouped_linear ──▶ rows (m, d) ── add_rows ──▶ (n, d)
              one row for each        │ expert 0 │ expert 1 │ …            each row is added to
              token and expert        │ W₀       │ W₁       │              its token

`embedding` picks rows by number, and `add_rows` is its transpose.  Gale et al. 2023 (MegaBlocks):
no row is padded, whatever the numbers of rows are.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array, check_ids, scatter_add


class GroupedLinear(Function):
    """y = x W[e] + bias[e], where expert e has the next counts[e] rows of x.

    x (m, in), W (experts, in, out), bias (experts, out) or None.
    """

    expects = "x (m, in), weight (experts, in, out), bias (experts, out), counts that add up to m"

    def flops(ctx, out, x, w, bias):
        products, bias_sum = 2 * out.size * x.shape[-1], 0 if bias is None else out.size
        return products + bias_sum, [products, products, bias_sum]

    def forward(ctx, x, w, bias, counts):
        need_x, need_w, need_bias = ctx.needs_grad
        if x.ndim != 2 or w.ndim != 3 or x.shape[1] != w.shape[1] or len(counts) != len(w) \
                or sum(counts) != len(x) or bias is not None and bias.shape != w.shape[::2]:
            raise ValueError(f"{len(counts)} experts have {sum(counts)} rows of {len(x)}")
        ctx.counts, ctx.shapes = counts, (x.shape, w.shape)
        ctx.save(x if need_w else None, w if need_x else None)
        ctx.stop_if_requested()
        y = np.empty((len(x), w.shape[2]), x.dtype, like=x)
        for expert, rows in rows_of_experts(counts):
            np.matmul(x[rows], w[expert], out=y[rows])
            if bias is not None:
                y[rows] += bias[expert]
        return y

    def backward(ctx, g):
        # for each expert e, with its rows:  dx = g W[e]ᵀ, dW[e] = xᵀ g, dbias[e] = Σ g
        (x, w), (x_shape, w_shape), counts = ctx.saved, ctx.shapes, ctx.counts

        def dx():
            d, weight = np.empty(x_shape, g.dtype, like=g), w()
            for expert, rows in rows_of_experts(counts):
                np.matmul(g[rows], weight[expert].T, out=d[rows])
            return d

        def dw():
            d, inputs = np.zeros(w_shape, g.dtype, like=g), x()
            for expert, rows in rows_of_experts(counts):
                np.matmul(inputs[rows].T, g[rows], out=d[expert])
            return d

        def dbias():
            d = np.zeros(w_shape[::2], g.dtype, like=g)
            for expert, rows in rows_of_experts(counts):
                d[expert] = g[rows].sum(axis=0)
            return d
        return [dx, dw, dbias]


def rows_of_experts(counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """(expert, its rows) for each expert that has some; the rows are sorted by expert."""
    for expert, (start, stop) in enumerate(pairwise(accumulate(counts, initial=0))):
        if start < stop:
            yield expert, slice(start, stop)


class AddRows(Function):
    """y = zeros (num_rows, d) with x[i] added to row ids[i];  dx = g[ids]."""

    expects = "x (m, d) and the m numbers of the rows to which they are added"

    def flops(ctx, out, x, ids):
        return x.size, [0, 0]

    def forward(ctx, x, ids, num_rows):
        if x.ndim != 2 or ids.shape != x.shape[:1]:
            raise ValueError(f"{len(x)} rows, but ids of shape {ids.shape}")
        check_ids(ids, num_rows, "ids")
        ctx.save(ids)
        return scatter_add(x, ids, (num_rows, x.shape[1]))

    def backward(ctx, g):
        (ids,) = ctx.saved
        return [lambda: np.take(g, ids(), axis=0), None]


class AttachLoss(Function):
    """y = x, and backward adds the gradient of `loss` to that of y:  dx = g, dloss = 1."""

    expects = "x, and a loss of one number"
    metered = False

    def forward(ctx, x, loss):
        if loss.ndim:
            raise ValueError(f"the loss has shape {loss.shape}")
        ctx.one = np.ones_like(loss)
        return x

    def backward(ctx, g):
        return [g, ctx.one]


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None,
                   counts: Sequence[int]) -> Tensor:
    """x (m, in) weight[e] (in, out) + bias[e] (out,) → (m, out); e has the next counts[e] rows."""
    return GroupedLinear.apply(x, weight, bias, counts=tuple(counts))


def add_rows(x: Tensor, ids: Array, num_rows: int) -> Tensor:
    """The sums (num_rows, d) of rows: row i of x (m, d) is added to row ids[i] of the result."""
    return AddRows.apply(x, Tensor(ids), num_rows=num_rows)


def attach_loss(x: Tensor, loss: Tensor) -> Tensor:
    """x itself; backward through it also adds the gradients of `loss`, one number.

    So a layer deep in a model, or in a pipeline's first stage, can have a loss of its own.
    """
    return AttachLoss.apply(x, loss)
