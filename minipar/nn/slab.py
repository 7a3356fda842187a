"""Slabs: parameters that the same ranks hold lie in one flat array, their gradients in another.

    slab.data  [ wte.weight            | h.0.ln_1.weight | h.0.ln_1.bias | h.0.attn… ]
    slab.grad  [ its gradient          | …               |               |           ]
                 └ a Parameter's .data and .grad are views, reshaped, of its segment

    segment    the place of one parameter in the slab, and of these numbers in the global parameter
    buffer     what an optimizer steps on: a slab, or a rank's piece of a slab (parallel/flats.py)

One message and one optimizer loop replace hundreds, and cutting one array into p pieces shards a
model over p ranks.  (Megatron calls slab.grad a grad buffer; PyTorch's flat parameters and buckets
are parts of slabs.)  Strategies, optimizers and checkpoints read segments and never guess shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..autograd import Tensor
from ..backend import Array, allocate_zeros
from .parameter import Parameter, slice_box


@dataclass(frozen=True)
class Segment:
    """The place of one parameter in its slab, and the part of the global parameter that it is.

    `box` is a (start, stop) pair for each axis of the global parameter.  An `order` reorders the
    last axis before the box is cut out.  So the q, k and v columns of one rank's heads can lie side
    by side.  `replicated` names the mesh axes along which every rank holds the same values.  Where
    a flat slab was cut without regard to shapes, `flat_range` is the (start, stop) of the box's
    elements that this rank holds.
    """

    name: str
    start: int
    stop: int
    box: tuple[tuple[int, int], ...]
    global_shape: tuple[int, ...]
    replicated: tuple[str, ...] = ()
    flat_range: tuple[int, int] | None = None
    order: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the local part: the box's, or flat if only a range of it is here."""
        bounds = self.box if self.flat_range is None else [self.flat_range]
        return tuple(stop - start for start, stop in bounds)

    def local_part(self, values: Array) -> Array:
        """The part of the global parameter `values` that this rank holds, flat."""
        here = slice_box(values, self.box, self.order)
        return here.reshape(here.size)[slice(*self.flat_range) if self.flat_range else slice(None)]


class FlatBuffer(Protocol):
    """What an optimizer steps on: parameters and gradients in flat arrays, a Slab or a Piece.

    Clipping, loss scaling, checkpoints and most optimizers know no more of a strategy than this.
    Optimizers of whole tensors also ask where the rest of a tensor is (optim/whole_tensors/).
    """

    data: Array                     # (n,)
    grad: Array                     # (n,), read through `complete_grad`
    segments: list[Segment]         # of this rank's elements, in order
    norm_comm: Any                  # the ranks whose parts add up in a norm; None if all is here

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The leaves of the graph whose values these are."""

    @property
    def is_copy(self) -> bool:
        """True if another rank counts these parameters in a norm."""

    def zero_grad(self) -> None:
        """Forget the gradients: the next backward writes instead of adding."""

    def complete_grad(self) -> Array:
        """`grad`, with zeros for parameters that received no gradient since `zero_grad`."""


class Slab:
    """The flat arrays behind `parameters`, (name, Parameter) pairs, which become views of them.

    The parameters' values, if they have any, are copied in.  `like` decides the kind of array
    (NumPy, CuPy or shape-only) and its dtype.  All parameters are whole, or cut by the same ranks.
    """

    norm_comm: Any = None       # the Communicator of all ranks with other parts; None: no others
    tp: Any = None              # the Communicator of the ranks with the other boxes, if any
    ep: Any = None              # the Communicator of the ranks with other experts, if any
    is_copy = False

    def __init__(self, parameters: Iterable[tuple[str, Parameter]], like: Array):
        named, start = list(parameters), 0
        self.parameters = [parameter for _, parameter in named]
        if named and named[0][1].cut_by:
            self.tp, self.ep = named[0][1].cut_by.tp, named[0][1].cut_by.ep
            self.norm_comm = self.tp
        self.segments: list[Segment] = []
        self._views: list[Array] = []
        num_elements = sum(parameter.size for parameter in self.parameters)
        self.data: Array = allocate_zeros("parameters", like, num_elements)
        self.grad: Array = allocate_zeros("gradients", like, num_elements)
        for name, parameter in named:
            stop = start + parameter.size
            self.segments.append(Segment(name, start, stop, parameter.box, parameter.global_shape,
                                         parameter.replicated, order=parameter.order))
            view, buffer = (a[start:stop].reshape(parameter.shape) for a in (self.data, self.grad))
            if parameter.initialized:
                view[...] = parameter.data.astype(view.dtype)
            parameter.data = view
            self._views.append(view)
            parameter.slot.grad, parameter.slot.get_grad_buffer = None, lambda buffer=buffer: buffer
            start = stop

    def use_values(self, new: Array) -> None:
        """Let the parameters be views of another array of values, (n,)."""
        self.data, self._views = new, [new[s.start:s.stop].reshape(s.shape) for s in self.segments]
        for parameter, view in zip(self.parameters, self._views):
            parameter.data = view

    def zero_grad(self) -> None:
        """Forget the gradients: the next backward writes instead of adding."""
        for parameter in self.parameters:
            parameter.grad = None

    def drop_grad(self) -> None:
        """Free the array of gradients: a strategy keeps them elsewhere from now on."""
        self.zero_grad()
        self.grad = None

    def drop(self) -> None:
        """Free both arrays: a strategy keeps pieces of them.  The segments stay."""
        self.drop_grad()
        self.data, self._views = None, []

    def complete_grad(self) -> Array:
        """The flat gradient, with zeros for parameters that received none since `zero_grad`.

        Raises ValueError for a parameter whose `data` is no longer a view of the slab, and after
        `drop_grad`.
        """
        if self.grad is None:
            raise sharded_gradient_error()
        for parameter, segment, view in zip(self.parameters, self.segments, self._views):
            if parameter.data is not view:
                raise replaced_array_error(segment.name)
            parameter.slot.fill_if_missing()
        return self.grad

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """A host copy of `values`, an array beside `data`, by parameter name; see `whole`."""
        return {segment.name: parameter.whole(values[segment.start:segment.stop])
                for segment, parameter in zip(self.segments, self.parameters)}


class Buffers(list):
    """The slabs, or pieces of slabs, that a rank optimizes: `model.slabs`, `strategy.slabs`."""

    def named(self, arrays: Sequence[Array]) -> dict[str, np.ndarray]:
        """A host copy of `arrays`, one beside each buffer, by name, as whole parameters.

        Collective over the ranks that have parts of these parameters.
        """
        return {name: values for slab, array in zip(self, arrays)
                for name, values in slab.named(array).items()}

    def gradients(self) -> dict[str, np.ndarray]:
        """A host copy of every gradient by its parameter's name.  Collective, as `named` is."""
        return self.named([buffer.complete_grad() for buffer in self])


def sharded_gradient_error() -> ValueError:
    """The error for reading the gradients of a slab after `drop_grad`."""
    return ValueError("the gradients of this slab are sharded over the ranks: use the strategy's "
                      "slabs, strategy.slabs, instead of model.slabs")


def replaced_array_error(name: str) -> ValueError:
    """The error for a parameter whose `data` is no longer a view of the slab."""
    return ValueError(f"{name}.data was replaced and would not be trained: write into it instead, "
                      f"{name}.data[...] = values")
