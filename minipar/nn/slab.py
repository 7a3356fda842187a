"""Slabs: the parameters of a unit live in one flat array, and their gradients in another.

    slab.data  [ wte.weight            | h.0.ln_1.weight | h.0.ln_1.bias | h.0.attn… ]
    slab.grad  [ its gradient          | …               |               |           ]
                 └ a Parameter's .data and .grad are views, reshaped, of its segment

One message, one optimizer loop, one checkpoint array instead of hundreds; and sharding a model over
p ranks is cutting one array into p pieces.  Each segment knows where it belongs, so whoever
communicates, clips, steps or saves reads segments and never guesses shapes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..backend import Array, allocate_zeros, to_host
from .parameter import Parameter, part_of


@dataclass(frozen=True)
class Segment:
    """Where one parameter is in its slab, and which part of the whole parameter it is.

    `box` is a (start, stop) pair for each axis of the global parameter; `replicated` names the mesh
    axes along which every rank holds the same values.  `part`, where a flat slab was cut without
    regard to shapes, is the (start, stop) of the elements of the box that are here.  `order`, if
    any, is that of the global parameter's last axis before the box is cut out of it.
    """

    name: str
    start: int
    stop: int
    box: tuple[tuple[int, int], ...]
    global_shape: tuple[int, ...]
    replicated: tuple[str, ...] = ()
    part: tuple[int, int] | None = None
    order: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is here: flat, if it is a part."""
        if self.part is not None:
            return (self.part[1] - self.part[0],)
        return tuple(stop - start for start, stop in self.box)

    def take(self, values: Array) -> Array:
        """What is here of the global parameter `values`, flat."""
        here = part_of(values, self.box, self.order)
        return here.reshape(here.size)[slice(*self.part) if self.part else slice(None)]


class Slab:
    """The flat arrays behind `parameters`, (name, Parameter) pairs, which become views of them.

    What the parameters held is copied in.  `like` decides the kind of array (NumPy, CuPy or
    shape-only) and its dtype.
    """

    comm = None             # the ranks that have the other parts, where this is one of several
    is_copy = False         # of what another rank counts in a norm

    def __init__(self, parameters: Iterable[tuple[str, Parameter]], like: Array):
        self.parameters: list[Parameter] = []
        self._views: list[Array] = []
        self.segments: list[Segment] = []
        named, start = list(parameters), 0
        for name, parameter in named:
            stop = start + math.prod(parameter.shape)
            self.segments.append(Segment(name, start, stop, parameter.box, parameter.global_shape,
                                         parameter.replicated, order=parameter.order))
            self.parameters.append(parameter)
            start = stop
        self.data: Array = allocate_zeros("parameters", like, start)
        self.grad: Array = allocate_zeros("gradients", like, start)
        for segment, parameter in zip(self.segments, self.parameters):
            view = self.data[segment.start:segment.stop].reshape(segment.shape)
            if parameter.initialized:
                view[...] = parameter.data.astype(view.dtype)
            parameter.data = view
            self._views.append(view)
            parameter.slot.grad = None
            place = self.grad[segment.start:segment.stop].reshape(segment.shape)
            parameter.slot.place = lambda place=place: place

    def zero_grad(self) -> None:
        """Forget the gradients: the next backward writes instead of adding."""
        for parameter in self.parameters:
            parameter.grad = None

    def drop_grad(self) -> None:
        """Free the gradients' array: from now on a strategy keeps them elsewhere."""
        self.zero_grad()
        self.grad = None

    def complete_grad(self) -> Array:
        """The flat gradient, with zeros for parameters that received none since `zero_grad`.

        Raises ValueError for a parameter whose `data` is no longer its place in the slab, and if
        the gradients are elsewhere.
        """
        if self.grad is None:
            raise ValueError("the gradients of this slab are sharded over the ranks: use the "
                             "strategy's slabs, strategy.slabs, instead of model.slabs")
        for parameter, segment, view in zip(self.parameters, self.segments, self._views):
            if parameter.data is not view:
                raise ValueError(f"{segment.name}.data was replaced and would not be trained: "
                                 f"write into it instead, {segment.name}.data[...] = values")
            if parameter.grad is None:
                parameter.slot.grad = parameter.slot.place()
                parameter.slot.grad[...] = 0
        return self.grad

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """A host copy of `values`, an array beside `data`, by parameter name."""
        return {s.name: np.array(to_host(values[s.start:s.stop])).reshape(s.shape)
                for s in self.segments}
