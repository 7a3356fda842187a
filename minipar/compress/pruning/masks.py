"""Masks: which weights there are.  A mask belongs to the use of a weight, not to the weight.

    Parameter w ─▶ w · mask ─▶ linear, …        forward
      g · mask  ◀───  g                         backward: what is not there learns nothing

The Parameter stays what optimizers, slabs, shards and checkpoints know.  Momentum, Adam's moments
and weight decay may do with a masked entry what they like: nobody who uses the weight sees it.

Put masks on before a strategy is made.  A model cut over ranks afterwards cuts its masks alike, and
one whose parameters are gathered (FSDP) masks what was gathered.
"""

from collections.abc import Mapping

import numpy as np

from ...autograd import Function, Tensor
from ...backend import Array, asarray_like
from ...nn import Linear, Module, Parameter


class ApplyMask(Function):
    """y = w mask;  dw = g mask.  The mask (bool, of the shape of w) is a constant."""

    expects = "a mask of the shape of its weight"

    @staticmethod
    def flops(ctx, out, w, mask):
        """One product for each element, in both directions."""
        return out.size, [out.size, 0]

    @staticmethod
    def forward(ctx, w, mask):
        ctx.save(mask)
        return np.multiply(w, mask)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved
        return [lambda: np.multiply(g, mask()), None]


def prunable_weights(model: Module) -> dict[str, Parameter]:
    """The weights of the linear layers, by full name: what holds most numbers, and can miss some.

    Embeddings, biases and layer norms are left alone.
    """
    linear = {id(module._parameters["weight"]) for _, module in model.named_modules()
              if isinstance(module, Linear)}
    return {name: p for name, p in model.named_parameters() if id(p) in linear}


class Masks:
    """The masks of `model`: True where a weight is kept; from now on they are applied at each use.

    `masks` are arrays of the shapes of whole parameters, by full name; parameters without one are
    used as they are.  Raises ValueError for an unknown name or another shape.
    """

    def __init__(self, model: Module, masks: Mapping[str, Array]):
        own = dict(model.named_parameters())
        for name, mask in masks.items():
            if name not in own or mask.shape != own[name].global_shape:
                there = f"of shape {own[name].global_shape}" if name in own else "not in the model"
                raise ValueError(f"a mask {mask.shape} for {name}, which is {there}: give masks "
                                 "of the model that they were made for")
        self.parameters = {name: own[name] for name in masks}
        self._masks = {p.slot: (p.local_part(masks[name]).astype(bool), p.box)
                       for name, p in self.parameters.items()}
        for _, module in model.named_modules():
            if any(p.slot in self._masks for p in module._parameters.values()):
                module._transforms.insert(0, self.apply)

    def apply(self, value: Parameter) -> Tensor:
        """The transform, the first: `value` as others use it.  Raises ValueError for no Parameter.
        """
        if not isinstance(value, Parameter):
            raise ValueError("masks must be the first that a parameter passes through: put them "
                             "on before the strategy is made, and choose fsdp, not zero3")
        if value.slot not in self._masks:
            return value
        return ApplyMask.apply(value, asarray_like(self.local(value), value.data))

    def local(self, parameter: Parameter) -> np.ndarray:
        """The mask of what this rank has of a parameter; whole masks are cut when that was."""
        mask, box = self._masks[parameter.slot]
        if box != parameter.box:            # cut since then, which happens only once
            mask = parameter.local_part(mask)
            self._masks[parameter.slot] = mask, parameter.box
        return mask

    def local_masks(self) -> dict[str, np.ndarray]:
        """The masks of what is here, by full name."""
        return {name: self.local(p) for name, p in self.parameters.items()}

    def update(self, masks: Mapping[str, np.ndarray]) -> None:
        """Other masks for some parameters, of the shapes that these have here."""
        for name, mask in masks.items():
            parameter = self.parameters[name]
            if mask.shape != parameter.shape:
                raise ValueError(f"a mask {mask.shape} for {name}, of which {parameter.shape} is "
                                 "here: decide on the model as it is cut")
            self._masks[parameter.slot] = mask, parameter.box

    def zero_masked(self) -> None:
        """Set the parameters themselves to 0 where they are masked, for those who read them."""
        for parameter in self.parameters.values():
            parameter.data[...] *= asarray_like(self.local(parameter), parameter.data)

    def num_kept(self) -> int:
        """How many masked parameters' elements are kept here."""
        return sum(int(mask.sum()) for mask in self.local_masks().values())

    def sparsity(self) -> float:
        """Which share of them is not."""
        return 1 - self.num_kept() / sum(p.size for p in self.parameters.values())
