"""Base of the wires that send little of a gradient: few of its numbers, or few bits of each.

    strategy      wire.of(flat).all_reduce(comm, gradient, out=gradient)     as with any wire
    this base     flat.layout ─▶ {"0.weight": (64, 8), "0.bias": (8,), …}    so methods see matrices
    a method      combine ─▶ the sums over the ranks, and what to remember   errors, momentum, …

A method remembers arrays by the names of tensors.  So they stay valid when buckets are cut in
another way, and go into checkpoints.  If the sum of a bucket has an infinity or NaN, the method
remembers nothing of this bucket.  All ranks have the same sum, so all do the same.  (If the loss
scaler then skips the step, what other buckets sent in it is lost.)  Gradients come multiplied by
the loss scale; methods see them without it.

Some methods put momentum before the sum (`has_momentum`): the "sum" is then the direction of the
step, for an SGD without momentum of its own.  The gradients of the ranks are shares of a sum, not
of a mean, because each rank divides its loss by the number of all targets.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ....backend import Array, record_allocation, to_device_of
from ....comm import Communicator
from ....comm.collectives import all_reduce, sum_over_ranks
from ...errors import whole_gradients_error
from ...flats import Flat
from ..wire import Wire

Tensors = dict[str, Array]              # by the name of a parameter, in its shape


class TensorWire(Wire):
    """A wire that sums gradients of whole tensors, with DDP; a subclass defines `combine`."""

    has_momentum = False
    sums_pieces = False
    verb = "by"
    hides_nan = False           # True if codes cannot say NaN: `all_reduce` looks for it before
    key: Hashable = None        # the flat that is summed

    def __init__(self) -> None:
        self.kept: Tensors = {}
        self.scale = 1.0

    @abstractmethod
    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        """The sums over the ranks, by tensor; and what to remember, by "tensor/what".

        `tensors` are this rank's gradients, its own to change; `step` counts from 0.
        """

    def of(self, key: Hashable) -> "TensorWire":
        wire = copy(self)
        wire.key = key
        return wire

    def start_batch(self, scale: float) -> None:
        self.scale = scale

    def all_reduce(self, comm: Communicator, array: Array, *, out: Array) -> Array:
        """Write the sum that the method makes of a flat's gradient into `out`, and return it.

        On one rank, methods without momentum leave the gradient as it is.
        """
        if not isinstance(self.key, Flat) or comm.size == 1 and not self.has_momentum:
            return all_reduce(comm, array, out=out)
        if self.hides_nan and sum_over_ranks(comm, float(not np.isfinite(array).all())):
            out[...] = np.nan
            return out
        layout = self.key.layout
        tensors = {segment.name: array[segment.start:segment.stop].reshape(segment.shape)
                   / self.scale for segment in layout}
        counters = [f"{name}/steps" for name in tensors]
        step = int(self.kept.get(counters[0], 0))
        sums, kept = self.combine(comm, tensors, step)
        for segment in layout:
            total = sums[segment.name].reshape(segment.stop - segment.start)
            out[segment.start:segment.stop] = total * self.scale
        if np.isfinite(out).all():
            self.kept |= {name: record_allocation("communication", a) for name, a in kept.items()}
            self.kept |= dict.fromkeys(counters, np.array(step + 1))
        return out

    def reduce_scatter(self, comm: Communicator, flat: Array, **options: Any) -> Array:
        raise whole_gradients_error(type(self).__name__)

    all_gather = reduce_scatter         # it sends gradients, not weights

    def remembered(self, name: str, like: Array) -> Array:
        """The array remembered by that name; zeros if there is none, or one of another shape."""
        found = self.kept.get(name)
        return np.zeros_like(like) if found is None or found.shape != like.shape \
            else to_device_of(found, like)

    def state_dict(self) -> Tensors:
        return {f"{type(self).__name__}/{name}": array for name, array in self.kept.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        own = f"{type(self).__name__}/"
        self.kept |= {name.removeprefix(own): array.copy() for name, array in state.items()
                      if name.startswith(own)}


def joined(tensors: Mapping[str, Array]) -> Array:
    """All numbers of the tensors, end to end (n,)."""
    return np.concatenate([tensor.reshape(tensor.size) for tensor in tensors.values()])


def parted(flat: Array, tensors: Mapping[str, Array]) -> Tensors:
    """`flat`, cut into the shapes of `tensors`, by name."""
    stops = accumulate(tensor.size for tensor in tensors.values())
    return {name: flat[stop - tensor.size:stop].reshape(tensor.shape)
            for (name, tensor), stop in zip(tensors.items(), stops)}


def sum_together(comm: Communicator, tensors: Mapping[str, Array]) -> Tensors:
    """The sums over the ranks, in one message.  Collective."""
    return parted(all_reduce(comm, joined(tensors)), tensors) if tensors else {}


def size_of(shape: Sequence[int]) -> tuple[int, int]:
    """The size (n, m) of a tensor as a matrix: its first axis, and all others as one."""
    return (shape[0] if shape else 1), prod(shape[1:])
