"""Sparse storage and sparse products: what masks save in bytes, in FLOPs, and (not) in seconds.

    dense          w₀ 0 w₂ 0 0 w₅ …         4 bytes for each weight, zeros too
    bitmap         101001…  w₀ w₂ w₅        1 bit for each weight, 4 bytes for each kept one
    CSC            rows 0 2 5, w₀ w₂ w₅     8 bytes for each kept one, 4 for each column
    2 of 4         w₀ w₂, places 00 10      4 bytes and 2 bits for each kept one (two_of_four.py)

A product with a dense weight reads both operands in order and reuses the cache.  A product with a
sparse weight gathers its inputs from scattered places, so it computes less and may still take
longer.  Hardware with native 2:4 sparsity gathers at no cost (Mishra et al. 2021); NumPy cannot.

These layers are for inference: they have no backward.
"""

import numpy as np

from ...autograd import Function, Tensor
from ...backend import to_host
from ...nn import Linear, Module

INDEX = np.dtype(np.int32)


def bitmap_bytes(mask: np.ndarray, itemsize: int = 4) -> int:
    """The bytes of the values that a mask keeps, and of one bit for each element."""
    return int(mask.sum()) * itemsize + -(-mask.size // 8)


class GatherMatmul(Function):
    """y[:, j] = Σ x[:, rows[i]] values[i] + bias[j] over starts[j] ≤ i < starts[j + 1]."""

    expects = "x (..., in)"

    @staticmethod
    def flops(ctx, out, x, values, rows, starts, bias):
        """One multiply-add for each stored value and row of x, and the bias."""
        return 2 * values.size * (x.size // x.shape[-1]) + out.size, [0] * 5

    @staticmethod
    def forward(ctx, x, values, rows, starts, bias):
        columns = np.ascontiguousarray(x.reshape(x.size // x.shape[-1], x.shape[-1]).T)
        out = np.empty((starts.size - 1, columns.shape[1]), columns.dtype, like=columns)
        for j, (start, stop) in enumerate(zip(starts, starts[1:])):
            out[j] = values[start:stop] @ columns[rows[start:stop]] + bias[j]
        return np.ascontiguousarray(out.T).reshape(*x.shape[:-1], starts.size - 1)

    @staticmethod
    def backward(ctx, g):
        """Raises TypeError."""
        raise TypeError("a sparse product has no backward: train the masked model")


def bias_of(layer: Linear) -> np.ndarray:
    """The bias of a layer; zeros if it has none."""
    return to_host(layer.bias.data) if layer.has_bias else np.zeros(layer.weight.shape[1],
                                                                    layer.weight.dtype)


class SparseLinear(Module):
    """A linear layer that stores only nonzero weights, column by column (CSC)."""

    def __init__(self, layer: Linear):
        super().__init__()
        weight = to_host(layer.weight.data)
        columns, rows = np.nonzero(weight.T)
        self.values, self.rows = weight[rows, columns], rows.astype(INDEX)
        self.starts = np.searchsorted(columns, np.arange(weight.shape[1] + 1)).astype(INDEX)
        self.bias = bias_of(layer)

    @property
    def nbytes(self) -> int:
        """The bytes of the weight: values, rows, and the starts of the columns."""
        return self.values.nbytes + self.rows.nbytes + self.starts.nbytes

    def forward(self, x: Tensor) -> Tensor:
        return GatherMatmul.apply(x, self.values, self.rows, self.starts, self.bias)


def replace_linear_layers(model: Module, kind: type) -> Module:
    """Replace every linear layer by a `kind`: SparseLinear or TwoOfFourLinear."""
    for _, module in list(model.named_modules()):
        for name, part in list(module._modules.items()):
            if type(part) is Linear:
                module._modules[name] = kind(part)
    return model
