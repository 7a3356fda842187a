"""LARS: SGD with momentum; each tensor's gradient is scaled to about `trust` times its weights.

    v ← μv + trust·‖w‖ / (‖g‖ + decay·‖w‖)·(g + decay·w)        w ← w - lr·v

The norms are of whole tensors (layerwise.py), and the ratio is 1 where w or g is 0.  Vectors take
the steps of SGD, without decay unless a group says so.  You, Gitman & Ginsburg 2017, arXiv
1708.03888.
"""

from collections.abc import Sequence

from ...backend import Array
from ...nn.slab import FlatBuffer, Segment
from ..groups import NO_DECAY_FOR_VECTORS, GroupSpan, ParameterGroup, is_vector
from .layerwise import Layerwise

EPSILON = 1e-8          # added to the norms: no division by 0


class LARS(Layerwise):
    """LARS; `trust` is the length of a step at lr 1, as a part of the length of the weights."""

    state_names = ("velocity",)

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1.0, momentum: float = 0.9,
                 trust: float = 0.01, weight_decay: float = 0.0,
                 groups: Sequence[ParameterGroup] = ()):
        super().__init__(slabs, lr, weight_decay, [*groups, NO_DECAY_FOR_VECTORS])
        self.momentum, self.trust = momentum, trust

    def direction(self, p: Array, g: Array, span: GroupSpan, *states: Array) -> Array:
        """The gradient g itself."""
        return g

    def ratio(self, segment: Segment, span: GroupSpan, w: float, u: float) -> float:
        """trust·‖w‖ / (‖g‖ + decay·‖w‖)."""
        if is_vector(segment) or not (w and u):
            return 1.0
        return self.trust * w / (u + span.weight_decay * w + EPSILON)

    def move(self, p: Array, u: Array, span: GroupSpan, ratio: float, *states: Array) -> None:
        """Move v, then w."""
        (velocity,) = states
        velocity *= self.momentum
        velocity += ratio * (u + span.weight_decay * p)
        p -= self.lr * span.lr_scale * velocity
