"""Quantization-aware training: forward with rounded weights, backward as if they were not rounded.

    w ─▶ [ ŵ = (clip(round(w / scale) + zero) - zero) · scale ] ─▶ y
    dw ◀─ dŵ where w lies inside the grid's range, 0 where it was clipped ◀─

    prepare_qat(model, IntGrid(4)); train; freeze(model); train a little; convert(model)

The optimizer keeps the float weight, in which many small steps add up to one step of the grid.

          x̂   ┌──────     Rounding is a staircase.  Its derivative is 0 almost everywhere, so the
            ┌─┘           model would learn nothing.  The straight-through estimator uses the slope
          ┌─┘             of the line that the stairs follow instead: 1 inside the grid's range,
    ──────┘        x      and 0 outside, where x is clipped.

The fake quantization of a weight sits between the Parameter and the layers that use it, so slabs,
optimizers, strategies and checkpoints do not change.  Until `freeze`, scales follow the weights in
every step.  Under tensor parallelism each rank fits the same grids as one process would.  Channels
and groups that a rank holds whole need no message.  For channels that are cut (in a row-parallel
layer), and for whole tensors, the ranks agree on the extremes by an all-reduce.  If `activations`
are quantized too, a moving average observes each layer's inputs until `freeze`, and one scale
rounds them.

Source: Bengio, Léonard & Courville, Estimating or propagating gradients through stochastic neurons
for conditional computation (2013); Jacob et al. (2018), section 3.
"""

from collections.abc import Callable

import numpy as np

from ...autograd import Function, Tensor
from ...autograd.function import is_recording
from ...backend import Array, keep_where
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Embedding, Linear, Module
from ...nn.parameter import RemovableHandle
from ...number_formats.affine import INT8, IntGrid
from ...parallel.tensor.layers import RowLinear
from .granularity import CHANNEL, Granularity
from .layers import (
    ACTIVATIONS,
    QuantizedLayer,
    layer_grid,
    set_quantized_weight,
    use_integer_inputs,
)
from .observers import Observer
from .quantized_tensor import QuantizedTensor


class FakeQuantize(Function):
    """x̂: each number of x rounded to the nearest value of a grid, which clips at its ends."""

    expects = "x, and scale and zero that broadcast against it"

    @staticmethod
    def flops(ctx, out, x, scale, zero):
        return 6 * out.size, [0, 0, 0]

    @staticmethod
    def forward(ctx, x, scale, zero, grid):
        codes = np.rint(x / scale) + zero
        ctx.save((codes >= grid.lowest) & (codes <= grid.highest))
        return (np.clip(codes, grid.lowest, grid.highest) - zero) * scale

    @staticmethod
    def backward(ctx, g):
        # dx = g inside of the grid's range, 0 outside
        (inside,) = ctx.saved
        return [lambda: keep_where(inside(), g), None, None]


def fake_quantize(x: Tensor, scale: Array, zero: Array, grid: IntGrid) -> Tensor:
    """x (any shape) rounded to the grid, of the same dtype; scale and zero broadcast against x."""
    return FakeQuantize.apply(x, scale.astype(x.dtype), zero.astype(x.dtype), grid=grid)


class FakeQuantizedWeight:
    """The fake quantization of a layer's weight; a bias, which is a vector, passes unchanged."""

    def __init__(self, layer: Linear | Embedding, grid: IntGrid, per: Granularity):
        weight = layer._parameters["weight"]        # the Parameter itself: no gather
        self.grid, self.per, self.shape = grid, per, weight.shape
        self.is_linear = isinstance(layer, Linear)
        self.comm: Communicator | None = None
        split = weight.cut_by
        if split is not None and split.tp.size > 1 and (
                per.kind == "tensor" or per.kind == "channel" and isinstance(layer, RowLinear)):
            self.comm = split.tp
        self.is_frozen = False
        self.fitted: tuple[Array, Array] | None = None      # (scale, zero point) once frozen
        if per.kind == "group" and isinstance(layer, RowLinear):
            cuts = [start for start, _ in chunk_bounds(weight.global_shape[0], split.tp.size)]
            if any(cut % per.size for cut in cuts):     # all ranks find this: none goes on alone
                raise ValueError(f"a layer's inputs are cut over ranks at {cuts[1:]}, in the "
                                 f"middle of groups of {per.size}: choose a size that divides all "
                                 "these, or quantize per channel")

    def calculate_qparams(self, weight: Array) -> tuple[Array, Array]:
        """The (scale, zero point) of the units of this weight."""
        seen = Observer("minmax", self.grid, self.comm)
        seen.observe(self.per.split(weight.T if self.is_linear else weight))
        return seen.calculate_qparams()

    def __call__(self, weight: Tensor) -> Tensor:
        """The rounded weight.  Raises ValueError for a shard of the weight: see `prepare_qat`."""
        if weight.ndim == 1:
            return weight
        if weight.shape != self.shape:
            raise ValueError(f"a whole weight {self.shape} was expected, not {weight.shape}: "
                             "prepare the model after parallelize, before a strategy shards it")
        scale, zero = self.fitted or self.calculate_qparams(weight.data)
        if self.is_frozen:
            self.fitted = scale, zero
        rows = self.shape[::-1] if self.is_linear else self.shape
        scale, zero = (self.per.spread(a, rows) for a in (scale, zero))
        if self.is_linear:
            scale, zero = scale.T, zero.T
        return fake_quantize(weight, scale, zero, self.grid)


class FakeQuantizedInput:
    """Around a linear layer: observes its inputs in training, and rounds them."""

    door: RemovableHandle

    def __init__(self, comm: Communicator | None):
        self.observer = Observer("moving", ACTIVATIONS, comm)

    def __call__(self, forward: Callable, x: Tensor) -> Tensor:
        """The layer's output for the rounded x."""
        if is_recording():
            self.observer.observe(x.data.reshape(1, x.size))
        scale, zero = (a.reshape(()) for a in self.observer.calculate_qparams())
        return forward(fake_quantize(x, scale, zero, ACTIVATIONS))


def prepare_qat(model: Module, grid: IntGrid = INT8, per: Granularity = CHANNEL,
                activations: bool = False, comm: Communicator | None = None) -> Module:
    """Change `model` to compute with fake-quantized weights, and inputs if asked; return it.

    Call this after `parallelize`.  With `activations`, `comm` has all ranks that share the model or
    its batch; they agree on the observed ranges.  Rematerialize only after `freeze`: before, a
    second forward would use a different scale for inputs.  Raises ValueError for a quantized model,
    and for groups that a row-parallel layer would split.
    """
    layers = [m for _, m in model.named_modules() if isinstance(m, Linear | Embedding)]
    if not layers or any(isinstance(m, QuantizedLayer) for m in layers):
        raise ValueError("a model with float weights was expected: load the model that was "
                         "quantized")
    for layer in layers:
        weight = layer._parameters["weight"]
        if not _fakes(layer):           # a weight of two layers is rounded once
            weight.on_use(FakeQuantizedWeight(layer, *layer_grid(layer, grid, per)))
        if activations and isinstance(layer, Linear):
            fake_input = FakeQuantizedInput(comm)
            fake_input.door = layer.around(fake_input)
    return model


def freeze(model: Module) -> None:
    """Keep all scales as they are from now on; weights outside their range are clipped.

    A weight's scale comes from its next use: FSDP has no weights between steps.
    """
    for _, module in model.named_modules():
        for fake in _fakes(module):
            fake.is_frozen = True
        for fake_input in _fake_inputs(module):
            fake_input.observer.freeze()


def convert(model: Module) -> Module:
    """Turn a prepared model into a quantized one with the scales it was trained with.

    Inputs that were observed become integers too.  Raises ValueError for a sharded model.
    """
    for name, layer in [*model.named_modules()]:
        for fake in _fakes(layer):
            weight = layer._parameters["weight"]
            if weight.shape != weight.global_shape:
                raise ValueError(f"{name}.weight is cut over ranks: load strategy.state_dict() "
                                 "into a whole model, prepare and convert that")
            rows = weight.data.T if fake.is_linear else weight.data
            fitted = fake.fitted or fake.calculate_qparams(weight.data)
            made = set_quantized_weight(model, layer, QuantizedTensor.fitted(
                rows, *fitted, fake.grid, fake.per))
            for fake_input in _fake_inputs(layer):
                fake_input.door.remove()
                use_integer_inputs(model, made, *fake_input.observer.calculate_qparams())
    if model.slabs:
        model.make_slabs(model.slabs[0].data)
    return model


def _fakes(module: Module) -> list[FakeQuantizedWeight]:
    weight = module._parameters.get("weight")
    transforms = [] if weight is None else weight.transforms
    return [t for t in transforms if isinstance(t, FakeQuantizedWeight)]


def _fake_inputs(module: Module) -> list[FakeQuantizedInput]:
    return [wrapper for wrapper in module._around if isinstance(wrapper, FakeQuantizedInput)]
