"""Layers with a quantized weight; the model around them does not change.

    QuantizedLinear     x ─▶ x ŵ + bias        dequantizes ŵ from the packed codes at every use
    QuantizedEmbedding  ids ─▶ rows of ŵ       (a tied head uses ŵ as well)
    IntegerLinear       x ─▶ codes of x ─▶ codes · codes, exact ─▶ · scale_x scale_w + bias

The weight is no longer a Parameter: it is not trained, and no slab has a float copy of it.  All
other parameters (biases, layer norms) stay as they are.  `parallelize` and a pipeline cut the codes
over ranks (`parallel/tensor/packed_weights.py`).
"""

from collections.abc import Container
from typing import Any

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array, as_rows
from ...backend.shape_array import ShapeArray
from ...nn import Embedding, Linear, Module
from ...nn.module import replace_module
from ...nn.moe import refuse_experts
from ...nn.parameter import Parameter, zeros
from ...number_formats.affine import IntGrid
from ...parallel.tensor.layers import RowLinear
from ...parallel.tensor.packed_weights import PackedLayer
from ...parallel.tensor.vocabulary import VocabularyEmbedding
from .float_grid import Grid
from .granularity import CHANNEL, Granularity
from .int_matmul import affine_matmul
from .quantized_tensor import QuantizedTensor

ACTIVATIONS = IntGrid(8, "asymmetric")     # one-sided after a ReLU, nearly so after a GELU
EMBEDDING_BITS = 8                      # at least: a row is read as it is, and errors add up


class QuantizedLayer(PackedLayer):
    """A layer whose weight is `quantized` and dequantized to `dtype` at every use."""

    quantized: QuantizedTensor
    dtype: np.dtype
    stand_in: Parameter | None = None       # a Parameter without numbers, for others to cut
    cut_to: tuple[tuple[int, int], ...]     # the box of the whole weight that `quantized` has

    @property
    def weight(self) -> Tensor:
        """The weight as floats, dequantized now."""
        rows = self.quantized.rows(self.dtype)
        return Tensor(rows.T if isinstance(self, Linear) else rows)

    def show_weight(self: Any) -> None:
        """Show the weight as a Parameter without numbers, `stand_in`, which others may then cut."""
        if self.stand_in is None:
            shape = self.quantized.shape
            weight = Parameter(shape[::-1] if isinstance(self, Linear) else shape, zeros)
            weight.data = ShapeArray(weight.shape, self.dtype)
            vars(self).update(stand_in=weight, cut_to=weight.box)
        self._parameters["weight"] = self.stand_in

    def take_part(self: Any) -> None:
        """Remove `stand_in`, and keep only the codes of the part to which it was cut."""
        weight = self._parameters.pop("weight")
        if weight.box != self.cut_to:
            columns, outputs = weight.box if isinstance(self, Linear) else weight.box[::-1]
            rows = np.arange(self.quantized.shape[0]) if weight.order is None \
                else np.array(weight.order)
            self.quantized = self.quantized.part(rows[slice(*outputs)], columns)
            self.cut_to = weight.box


class QuantizedLinear(QuantizedLayer, Linear):
    """x (..., in) → x ŵ + bias (..., out)."""


class QuantizedEmbedding(QuantizedLayer, Embedding):
    """ids (...) → rows of ŵ (..., width)."""


class QuantizedRowLinear(QuantizedLayer, RowLinear):
    """A row-parallel linear layer: ŵ is cut along the inputs."""


class QuantizedVocabularyEmbedding(QuantizedLayer, VocabularyEmbedding):
    """A vocabulary-parallel embedding: ŵ is cut along the vocabulary."""


class IntegerProduct(Function):
    """y = x̂ ŵ + bias with x̂ on the grid ACTIVATIONS; for inference only."""

    expects = "x (..., in), a bias (out,) or None"

    @staticmethod
    def flops(ctx, out, x, bias, **options):
        """2 FLOPs for each multiply-add of integers, as of floats."""
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
        return self.product(x, self.bias.data if self.has_bias else None)

    def product(self, x: Tensor, bias: Array | None) -> Tensor:
        """x̂ ŵ + bias."""
        return IntegerProduct.apply(x, bias, weight=self.quantized, scale=self.input_scale,
                                    zero=self.input_zero)


class IntegerRowLinear(IntegerLinear, RowLinear):
    """A row-parallel IntegerLinear."""

    def forward(self, x: Tensor) -> Tensor:
        """This rank's columns of x (..., in/p) → x̂ ŵ + bias (..., out), summed over the ranks."""
        y = self.split.leave(self.product(x, None))
        return y + self.split.shared(self.bias) if self.has_bias else y


QuantizedLinear.parts = {RowLinear: QuantizedRowLinear}
QuantizedEmbedding.parts = {VocabularyEmbedding: QuantizedVocabularyEmbedding}
IntegerLinear.parts = {RowLinear: IntegerRowLinear}


def weight_rows(layer: Linear | Embedding) -> Array:
    """A layer's weight with one row for each output, or for each token of a vocabulary."""
    weight = layer.weight.data
    return np.ascontiguousarray(weight.T) if isinstance(layer, Linear) else weight


def layer_grid(layer: Linear | Embedding, grid: Grid,
               per: Granularity) -> tuple[Grid, Granularity]:
    """(grid, granularity) of a layer's weight, if linear layers use `grid` and `per`.

    Embeddings get at least 8 bits, and no groups unless the format has them: GPTQ does not
    calibrate them, and a tied head uses them as well.
    """
    per = grid.per or per
    if isinstance(layer, Linear):
        return grid, per
    return grid.for_embeddings(EMBEDDING_BITS), per if grid.per or not per.size else CHANNEL


def set_quantized_weight(model: Module, layer: Linear | Embedding,
                         quantized: QuantizedTensor) -> QuantizedLayer:
    """Replace a layer of `model` by one whose weight is `quantized`, and return the new layer.

    The caller must then let the model make new slabs.
    """
    kind: Any = QuantizedLinear if isinstance(layer, Linear) else QuantizedEmbedding
    made = kind.replacing(layer, quantized=quantized, dtype=layer._parameters.pop("weight").dtype)
    replace_module(model, layer, made)
    return made


def check_integer_product(per: Granularity) -> None:
    """Raise ValueError for scales of groups: one sum of products would need several scales."""
    if per.kind == "group":
        raise ValueError("a product of integers needs one scale for each output, not one for each "
                         f"{per}: quantize per channel, or leave activations out")


def use_integer_inputs(model: Module, layer: QuantizedLinear, scale: Array, zero: Array) -> None:
    """Replace a layer of `model` by one that quantizes its inputs and multiplies integers.

    Raises ValueError for a weight in groups.
    """
    check_integer_product(layer.quantized.per)
    replace_module(model, layer, IntegerLinear.replacing(
        layer, input_scale=scale.reshape(1, 1), input_zero=zero.reshape(1, 1)))


def drop_weights(model: Module, kept: Container[Module]) -> None:
    """Free the codes of the layers that other ranks compute: all that are not in `kept`."""
    for _, layer in model.named_modules():
        if isinstance(layer, QuantizedLayer) and layer not in kept:
            del layer.__dict__["quantized"]


def quantizable_layers(model: Module) -> list[tuple[str, Linear | Embedding]]:
    """The linear layers and embeddings of a model, with their full names.

    Raises ValueError for a model without such layers, or with experts, and for a layer that is
    quantized already or cut over ranks.
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
        if type(layer) not in (Linear, Embedding) or layer._parameters["weight"].cut_by:
            raise ValueError(f"{name} is a {type(layer).__name__}, a part of a layer: quantize the "
                             "whole model, loaded from strategy.state_dict()")
    return layers
