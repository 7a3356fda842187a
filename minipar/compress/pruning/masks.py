"""Masks: which weights a model uses.  A mask belongs to the use of a weight, not to the weight.

    Parameter w ─▶ w · mask ─▶ linear, …        forward
      g · mask  ◀───  g                         backward: masked weights get no gradient

Optimizers, slabs, shards and checkpoints see the same Parameter as before.  Momentum, Adam's
moments and weight decay may change a masked entry, but no layer uses it.

Put masks on before a strategy is made.  If the model is cut over ranks afterwards, its masks are
cut alike; if a strategy gathers parameters (FSDP), the gathered ones are masked.
"""

from collections.abc import Mapping

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array, asarray_like, keep_where
from ...nn import Linear, Module, Parameter
from ...nn.moe import refuse_experts
from ...nn.parameter import mark_changed


class ApplyMask(Function):
    """y = w mask;  dw = g mask.  The mask (bool, shape of w) is a constant."""

    expects = "a mask of the shape of its weight"

    @staticmethod
    def flops(ctx, out, w, mask):
        """No FLOPs: elements are only picked."""
        return 0, [0, 0]

    @staticmethod
    def forward(ctx, w, mask):
        ctx.save(mask)
        return keep_where(mask, w)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved
        return [lambda: keep_where(mask(), g), None]


def prunable_weights(model: Module) -> dict[str, Parameter]:
    """The weights of the linear layers, by full name.

    They hold most of the numbers.  Embeddings, biases and layer norms are not pruned.  Raises
    ValueError for a model with experts.
    """
    refuse_experts(model, "pruned")
    linear = {id(module._parameters["weight"]) for _, module in model.named_modules()
              if isinstance(module, Linear)}
    return {name: p for name, p in model.named_parameters() if id(p) in linear}


class Masks:
    """The masks of `model`, True where a weight is kept; the model applies them at each use.

    `masks` are arrays of the shapes of whole parameters, by full name; parameters without a mask
    stay as they are.  Raises ValueError for an unknown name or a wrong shape.
    """

    def __init__(self, model: Module, masks: Mapping[str, Array]):
        own = dict(model.named_parameters())
        for name, mask in masks.items():
            if name not in own or mask.shape != own[name].global_shape:
                there = f"of shape {own[name].global_shape}" if name in own else "not in the model"
                raise ValueError(f"a mask {mask.shape} for {name}, which is {there}: give masks "
                                 "that were made for this model")
        self.parameters = {name: own[name] for name in masks}
        self._masks = {p.slot: (p.local_part(masks[name]).astype(bool), p.box)
                       for name, p in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.on_use(self.apply, first=True)

    def apply(self, value: Parameter) -> Tensor:
        """Mask `value`, as the first transform of a parameter.  ValueError if it is no Parameter.
        """
        if not isinstance(value, Parameter):
            raise ValueError("masks must be the first transform of a parameter: put them on before "
                             "any other")
        return ApplyMask.apply(value, asarray_like(self.local(value), value.data))

    def local(self, parameter: Parameter) -> np.ndarray:
        """The mask of this rank's part of a parameter.

        If the parameter was cut after its mask was made, the mask is cut now.
        """
        mask, box = self._masks[parameter.slot]
        if box != parameter.box:
            mask = parameter.local_part(mask)
            self._masks[parameter.slot] = mask, parameter.box
        return mask

    def local_masks(self) -> dict[str, np.ndarray]:
        """The masks of this rank's parts of the parameters, by full name."""
        return {name: self.local(p) for name, p in self.parameters.items()}

    def update(self, masks: Mapping[str, np.ndarray]) -> None:
        """Replace the masks of some parameters; each has the shape of this rank's part."""
        for name, mask in masks.items():
            parameter = self.parameters[name]
            if mask.shape != parameter.shape:
                raise ValueError(f"a mask {mask.shape} for {name}, of which {parameter.shape} is "
                                 "here: decide on the model as it is cut")
            self._masks[parameter.slot] = mask, parameter.box

    def zero_masked(self) -> None:
        """Set masked entries of the parameters themselves to 0, for code that reads them."""
        for parameter in self.parameters.values():
            parameter.data[...] *= asarray_like(self.local(parameter), parameter.data)
        mark_changed(self.parameters.values())

    def sparsity(self) -> float:
        """The share of the elements of masked parameters on this rank that are not kept."""
        num_kept = sum(int(mask.sum()) for mask in self.local_masks().values())
        return 1 - num_kept / sum(p.size for p in self.parameters.values())
