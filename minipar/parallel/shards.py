"""Shards: one rank's piece of a flat parameter, which can be used like a slab.

    flat     [ ln_1.weight | ln_1.bias | attn.c_attn.weight        | … ]
    rank 0   [ ─────────────────────────────── ]
    rank 1                                     [ ─────────────────────── ]

Optimizers, clipping and checkpoints read `data`, `grad` and `segments` of a shard as those of a
whole slab; they do not know that the other pieces are on other ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..autograd import GradientSlot, Tensor
from ..backend import Array, to_device_of
from ..comm import Communicator
from ..nn import Parameter
from ..nn.slab import Segment
from .state import ShardState


def check_not_sharded(named: Iterable[tuple[str, Parameter]]) -> None:
    """Raise ValueError if a parameter is cut already: a shard of it would not know its axes."""
    for name, parameter in named:
        if parameter.shape != parameter.global_shape:
            raise ValueError(f"{name} is cut over tensor-parallel ranks already, {parameter.shape} "
                             f"of {parameter.global_shape}: give the plain model and a mesh with "
                             "dp and tp to make_hybrid(), with data_parallel=\"zero1\" or \"fsdp\"")


class Shard(ShardState):
    """Elements bounds[comm.rank] of a flat array of `parameters` whose segments are `layout`.

    `data` and `grad` are this rank's piece; the pieces of all ranks of `comm` make up the whole.
    """

    is_copy = False         # True: another rank counts these gradients in a norm

    def __init__(self, parameters: Sequence[Tensor], layout: Sequence[Segment],
                 comm: Communicator, bounds: Sequence[tuple[int, int]], data: Array, grad: Array):
        self.parameters, self.layout, self.comm = list(parameters), list(layout), comm
        self.counts = [stop - start for start, stop in bounds]
        self.data, self.grad, self.has_grad = data, grad, False
        start, stop = bounds[comm.rank]
        self.segments = [piece for segment in layout
                         if (piece := _overlap(segment, start, stop)) is not None]

    def on_ready(self, slot: GradientSlot) -> None:
        """A ready hook for a leaf whose gradient is written to `grad` by backward itself."""
        self.has_grad = True

    def add(self, piece: Array) -> None:
        """Add a reduced piece to the gradient."""
        piece = to_device_of(piece, self.grad)
        if self.has_grad:
            self.grad += piece
        else:
            self.grad[...] = piece
        self.has_grad = True

    def zero_grad(self) -> None:
        """Forget the gradients: the next backward writes instead of adding."""
        self.has_grad = False
        for parameter in self.parameters:
            parameter.grad = None

    def complete_grad(self) -> Array:
        """The gradient, zeros if there was no backward since `zero_grad`."""
        if not self.has_grad:
            self.grad[...] = 0
        return self.grad


def _overlap(segment: Segment, start: int, stop: int) -> Segment | None:
    """The part of a segment that lies in start … stop, counted from start; None if none does."""
    first, last = max(segment.start, start), min(segment.stop, stop)
    if first >= last:
        return None
    return replace(segment, start=first - start, stop=last - start,
                   flat_range=(first - segment.start, last - segment.start))
