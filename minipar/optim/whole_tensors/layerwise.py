"""Base of LAMB and LARS, which scale the step of a tensor by norms of the whole tensor.

    tensor      c_fc.weight               c_fc.bias        each rank adds up the squares of its
    rank 0      ▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░      ░░░░░            parts; a sum over the ranks, two numbers
    rank 1      ░░░░░░░░░░░▓▓▓▓▓▓▓▓▓      ▓▓▓▓▓            for each tensor, gives the norms

The norms of a whole slab, the flat array of many tensors, would give them all one ratio.  Where a
norm is 0 the ratio is 1, so that tensors of zeros can move.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backend import Array, to_device_of
from ...comm.collectives import all_reduce
from ...nn.parameter import mark_changed
from ...nn.slab import FlatBuffer, Segment
from ..groups import GroupSpan, ParameterGroup, span_of
from ..optimizer import Optimizer
from .exchange import parts_of, ranks_with_pieces


class Layerwise(Optimizer):
    """Base: a subclass defines `direction`, `ratio` and `move`, for a rank's part of a tensor.

    `ratios` are from the last step, by the names of the tensors that this rank has a part of.
    """

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float, weight_decay: float = 0.0,
                 groups: Sequence[ParameterGroup] = ()):
        super().__init__(slabs, lr, weight_decay, groups)
        self.ratios: dict[str, float] = {}
        self.spans = [[span_of(segment, groups, weight_decay) for segment in slab.segments]
                      for slab in slabs]

    @abstractmethod
    def direction(self, p: Array, g: Array, span: GroupSpan, *states: Array) -> Array:
        """Move the states; return u, the array of the step.  `ratio` gets its norm and p's."""

    @abstractmethod
    def ratio(self, segment: Segment, span: GroupSpan, w: float, u: float) -> float:
        """The factor of a tensor's step, from the norms of its weights and of `direction`."""

    @abstractmethod
    def move(self, p: Array, u: Array, span: GroupSpan, ratio: float, *states: Array) -> None:
        """Step p, in place."""

    def step(self) -> None:
        """Move the parameters along their gradients.  Collective where tensors are cut."""
        self.num_steps += 1
        for slab, state, spans in zip(self.slabs, self.states, self.spans):
            arrays, rows = (slab.data, slab.complete_grad(), *state.values()), []
            for segment, span in zip(slab.segments, spans):
                p, g, *own = (to_device_of(array[segment.start:segment.stop], arrays[-1])
                              for array in arrays)
                rows.append((segment, span, p, self.direction(p, g, span, *own), own))
            squares = sum_squares(slab, {segment.name: (p, u) for segment, _, p, u, _ in rows})
            for segment, span, p, u, own in rows:
                norms = map(math.sqrt, squares[segment.name])
                self.ratios[segment.name] = ratio = self.ratio(segment, span, *norms)
                self.move(p, u, span, ratio, *own)
                slab.data[segment.start:segment.stop] = to_device_of(p, slab.data)
            mark_changed(slab.parameters)


def sum_squares(slab: FlatBuffer, here: dict[str, tuple[Array, Array]]) -> dict[str, Any]:
    """Σ of the squares of two arrays over all parts of each tensor.  Collective where it is cut."""
    names = [part.box.name for part in parts_of(slab)]
    sums = np.array([[float(np.sum(np.square(array), dtype=np.float64)) for array in
                      here.get(name, ())] or [0.0, 0.0] for name in names]).reshape(-1, 2)
    whole = slab.flat.slab if hasattr(slab, "flat") else slab
    for comm in (ranks_with_pieces(slab), whole.tp, whole.ep):
        if comm is not None and comm.size > 1:
            all_reduce(comm, sums, out=sums)
    return dict(zip(names, sums))
