"""Shards: one rank's piece of a flat run of parameters, with the face of a slab.

    run      [ ln_1.weight | ln_1.bias | attn.c_attn.weight        | … ]
    rank 0   [ ─────────────────────────────── ]
    rank 1                                     [ ─────────────────────── ]

Optimizers, clipping and checkpoints read `data`, `grad` and `segments` of a shard as of a whole
slab: none of them knows that the rest is elsewhere.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..backend import Array, to_device_of, to_host
from ..comm import Communicator, collectives
from ..nn import Parameter
from ..nn.slab import Segment


class Shard:
    """Elements bounds[comm.rank] of a run of `parameters` whose segments are `layout`.

    `data` and `grad` are this rank's piece; the pieces of all ranks of `comm` make up the run.
    """

    is_copy = False         # of what another rank counts in a norm

    def __init__(self, parameters: Sequence[Parameter], layout: Sequence[Segment],
                 comm: Communicator, bounds: Sequence[tuple[int, int]], data: Array, grad: Array):
        self.parameters, self.layout, self.comm = list(parameters), list(layout), comm
        self.counts = [stop - start for start, stop in bounds]
        self.data, self.grad, self.has_grad = data, grad, False
        start, stop = bounds[comm.rank]
        self.segments = [piece for segment in layout
                         if (piece := _overlap(segment, start, stop)) is not None]

    def add(self, piece: Array) -> None:
        """Add to the gradient: what the ranks summed up for this one."""
        piece = to_device_of(piece, self.grad)
        if self.has_grad:
            self.grad += piece
        else:
            self.grad[...] = piece
        self.has_grad = True

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.has_grad = False
        for parameter in self.parameters:
            parameter.grad = None

    def complete_grad(self) -> Array:
        """The gradient, zeros if there was no backward since `zero_grad`."""
        if not self.has_grad:
            self.grad[...] = 0
        return self.grad

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """`values`, an array beside `data`, of all ranks, by parameter; all must call it."""
        with self.comm.labelled("state"):
            whole = to_host(collectives.all_gather(self.comm, values, counts=self.counts))
        return {s.name: np.array(whole[s.start:s.stop]).reshape(s.shape) for s in self.layout}


def _overlap(segment: Segment, start: int, stop: int) -> Segment | None:
    """What of a run's segment lies in start … stop, counted from there."""
    first, last = max(segment.start, start), min(segment.stop, stop)
    if first >= last:
        return None
    return replace(segment, start=first - start, stop=last - start,
                   flat_range=(first - segment.start, last - segment.start))


def gather_parameter(tp: Communicator, segment: Segment, piece: Array) -> np.ndarray:
    """The global array of which `piece`, flat, is this rank's box; all ranks call it."""
    values = np.array(piece).reshape(segment.shape)
    for dim, total in enumerate(segment.global_shape):
        if values.shape[dim] != total:
            values = collectives.all_gather(tp, values, dim, total)
    if segment.order is None:
        return np.ascontiguousarray(values)
    unordered = np.empty_like(values)
    unordered[..., np.array(segment.order)] = values
    return unordered
