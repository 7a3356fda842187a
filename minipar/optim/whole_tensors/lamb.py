"""LAMB: Adam's step of each tensor, made lr times as long as its weights; for very large batches.

    m, v as Adam's        u = m̂ / (√v̂ + ε) + decay·w        w ← w - lr·(‖w‖ / ‖u‖)·u

The norms are of whole tensors (layerwise.py), and the ratio is 1 where w or u is 0.  You et al.
2020, arXiv 1904.00962, algorithm 2.
"""

from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ...nn.slab import FlatBuffer, Segment
from ..groups import GroupSpan, ParameterGroup
from .layerwise import Layerwise


class LAMB(Layerwise):
    """LAMB; without `bias_correction` m̂ = m and v̂ = v, as some implementations have it."""

    state_names = ("first_moment", "second_moment")

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-6,
                 weight_decay: float = 0.01, bias_correction: bool = True,
                 groups: Sequence[ParameterGroup] = ()):
        super().__init__(slabs, lr, weight_decay, groups)
        self.betas, self.epsilon, self.bias_correction = betas, epsilon, bias_correction

    def direction(self, p: Array, g: Array, span: GroupSpan, *states: Array) -> Array:
        """Move m and v, and return u."""
        corrected = []
        for state, beta, value in zip(states, self.betas, (g, g * g)):
            state *= beta
            state += (1 - beta) * value
            corrected.append(state / (1 - beta**self.num_steps if self.bias_correction else 1))
        m, v = corrected
        return m / (np.sqrt(v) + self.epsilon) + span.weight_decay * p

    def ratio(self, segment: Segment, span: GroupSpan, w: float, u: float) -> float:
        """‖w‖ / ‖u‖."""
        return w / u if w and u else 1.0

    def move(self, p: Array, u: Array, span: GroupSpan, ratio: float, *states: Array) -> None:
        """Step: w ← w - lr·ratio·u."""
        p -= self.lr * span.lr_scale * ratio * u
