"""Embedding: rows of a table, picked by their numbers."""

import numpy as np

from ...backend import Array, check_ids, scatter_add
from ..function import Function
from ..tensor import Tensor
from .elementwise import as_rows


class Embedding(Function):
    """y = table[ids];  dtable = rows of g added up by id."""

    expects = "a table (rows, width) and an array of row numbers"

    @staticmethod
    def flops(ctx, out, table, ids):
        return 0, [out.size, 0]

    @staticmethod
    def forward(ctx, table, ids):
        if table.ndim != 2:
            raise ValueError("the table has two axes")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"ids are row numbers: integers, not {ids.dtype}")
        check_ids(ids, table.shape[0], "ids")
        ctx.save(ids)
        ctx.shape = table.shape
        return np.take(table, ids, axis=0)

    @staticmethod
    def backward(ctx, g):
        (ids,), shape = ctx.saved, ctx.shape
        return [lambda: scatter_add(as_rows(g), ids().reshape(-1), shape), None]


def embedding(table: Tensor, ids: Array) -> Tensor:
    """Rows of the table (rows, width), picked by ids (...) → (..., width)."""
    return Embedding.apply(table, Tensor(ids))      # ids are data: what they pick is no weight
