"""Layers with a quantized weight; the model around them does not change.

    QuantizedLinear     x ─▶ x ŵ + bias        dequantizes ŵ from the packed codes at every use
    QuantizedEmbedding  ids ─▶ rows of ŵ       (a tied head uses ŵ as well)
    IntegerLinear       x ─▶ codes of x ─▶ codes · codes, exact ─▶ · scale_x scale_w + bias

The weight is no Parameter any more: it is not trained, and no slab has a float32 copy of it.  All
other parameters (biases, layer norms) stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ...autograd import Function, Tensor
from ...autograd.ops.elementwise import as_rows
from ...backend import Array
from ...nn import Embedding, Linear, Module
from ...nn.moe import refuse_experts
from .affine import Grid, IntGrid
from .granularity import CHANNEL, Granularity
from .int_matmul import affine_matmul
from .quantized_tensor import QuantizedTensor

ACTIVATIONS = IntGrid(8, "asymmetric")     # one-sided after a ReLU, nearly so after a GELU
EMBEDDING_BITS = 8                      # at least: they are few of a model's bytes


class QuantizedLayer:
    """A layer whose weight is `quantized` and dequantized to `dtype` at every use."""

    quantized: QuantizedTensor
    dtype: np.dtype

    @property
    def weight(self) -> Tensor:
        """The weight as floats, dequantized now."""
        rows = self.quantized.rows(self.dtype)
        return Tensor(rows.T if isinstance(self, Linear) else rows)


class QuantizedLinear(QuantizedLayer, Linear):
    """x (..., in) → x ŵ + bias (..., out)."""


class QuantizedEmbedding(QuantizedLayer, Embedding):
    """ids (...) → rows of ŵ (..., width)."""


class IntegerProduct(Function):
    """y = x̂ ŵ + bias with x̂ on the grid ACTIVATIONS; for inference only."""

    expects = "x (..., in), a bias (out,) or None"

    @staticmethod
    def flops(ctx, out, x, bias, **options):
        """The FLOPs of the product of floats: 2 for each multiply-add of integers."""
        return 2 * out.size * x.shape[-1] + (0 if bias is None else out.size), [0, 0]

    @staticmethod
    def forward(ctx, x, bias, weight, scale, zero):
        if any(ctx.needs_grad):
            raise TypeError("a product of integers has no derivative: run the model inside "
                            "no_grad(), and to train for integers use fake quantization")
        codes = ACTIVATIONS.encode(as_rows(x), scale, zero)
        sums = affine_matmul(codes, zero, weight.codes().T, weight.zero.T)
        y = (sums * (scale * weight.scale.T)).astype(x.dtype, copy=False)
        if bias is not None:
            y += bias
        return y.reshape(*x.shape[:-1], y.shape[1])


class IntegerLinear(QuantizedLinear):
    """x̂ ŵ + bias by a product of integers; calibration data decided the scale of x."""

    input_scale: Array              # (1, 1)
    input_zero: Array

    def forward(self, x: Tensor) -> Tensor:
        """Raises TypeError if a gradient is needed: integers have no derivative."""
        return IntegerProduct.apply(x, self.bias.data if self.has_bias else None,
                                    weight=self.quantized, scale=self.input_scale,
                                    zero=self.input_zero)


def weight_rows(layer: Linear | Embedding) -> Array:
    """A layer's weight with one row for each output, or word."""
    weight = layer.weight.data
    return np.ascontiguousarray(weight.T) if isinstance(layer, Linear) else weight


def layer_grid(layer: Linear | Embedding, grid: Grid,
               per: Granularity) -> tuple[Grid, Granularity]:
    """The grid and granularity of a layer's weight, if linear layers use `grid` and `per`.

    Embeddings, for which there is no calibration and which a tied head uses as well, get at least 8
    bits, and no groups unless the format has them.
    """
    per = grid.per or per
    if isinstance(layer, Linear):
        return grid, per
    return grid.for_embeddings(EMBEDDING_BITS), per if grid.per or not per.size else CHANNEL


def set_quantized_weight(layer: Linear | Embedding, quantized: QuantizedTensor) -> None:
    """Replace the layer's weight by `quantized`; then its model must make new slabs."""
    dtype = layer._parameters.pop("weight").dtype
    layer.__class__ = QuantizedLinear if isinstance(layer, Linear) else QuantizedEmbedding
    layer.__dict__.update(quantized=quantized, dtype=dtype)


def use_integer_inputs(layer: QuantizedLinear, scale: Array, zero: Array) -> None:
    """Make a layer quantize its inputs and multiply integers.

    Raises ValueError for a weight in groups: one sum of products would need several scales.
    """
    if layer.quantized.per.kind == "group":
        raise ValueError("a product of integers needs one scale for each output, not one for each "
                         f"{layer.quantized.per}: quantize per channel, or leave activations out")
    layer.__class__ = IntegerLinear
    layer.__dict__.update(input_scale=scale.reshape(1, 1), input_zero=zero.reshape(1, 1))


def quantizable_layers(model: Module) -> list[tuple[str, Linear | Embedding]]:
    """The linear layers and embeddings of a model, with their full names.

    Raises ValueError if there are none, if one is quantized already, or is sharded over ranks, and
    for a model with experts.
    """
    refuse_experts(model, "quantized")
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, Linear | Embedding)]
    if not layers:
        raise ValueError(f"a {type(model).__name__} has no linear layers or embeddings to quantize")
    for name, layer in layers:
        if isinstance(layer, QuantizedLayer):
            raise ValueError(f"layer {name} is quantized already, to "
                             f"{layer.quantized.grid.bits} bits: quantize the model that it was "
                             "made from")
        if type(layer) not in (Linear, Embedding):
            raise ValueError(f"{name} is a {type(layer).__name__}, a part of a layer: quantize the "
                             "whole model, loaded from strategy.state_dict()")
    return layers


@contextmanager
def capture_inputs(layers: Iterable[Module],
                   see: Callable[[Module, Array], None]) -> Iterator[None]:
    """Context in which every input x of these layers is passed to see(layer, x)."""
    layers = list(layers)

    def watched(layer: Module) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            see(layer, x.data)
            return type(layer).forward(layer, x)
        return forward
    for layer in layers:
        layer.forward = watched(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
