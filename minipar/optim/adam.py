"""Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), with PyTorch's defaults.

    m ← β₁ m + (1 - β₁) g            m̂ = m / (1 - β₁ᵗ)
    v ← β₂ v + (1 - β₂) g²           v̂ = v / (1 - β₂ᵗ)
    p ← p - lr m̂ / (√v̂ + ε)

Both corrections become two numbers per step: with s = √(1 - β₂ᵗ) the update is
(lr s / (1 - β₁ᵗ)) m / (√v + ε s).  Adam's weight decay is added to the gradient, and so divided by
√v̂; AdamW's shrinks p by the factor 1 - lr · weight_decay (`decoupled`, in optimizer.py).
"""

import math
from collections.abc import Sequence

import numpy as np

from ..nn.slab import FlatBuffer
from .groups import ParameterGroup
from .optimizer import Optimizer


class Adam(Optimizer):
    """Adam; `weight_decay` adds weight_decay · p to the gradient."""

    state_names = ("first_moment", "second_moment")
    flops_per_parameter = 12
    default_decay = 0.0

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
                 weight_decay: float | None = None, groups: Sequence[ParameterGroup] = ()):
        super().__init__(slabs, lr, self.default_decay if weight_decay is None else weight_decay,
                         groups)
        if not all(0 <= beta < 1 for beta in betas) or epsilon < 0:
            raise ValueError(f"betas are in [0, 1) and epsilon >= 0, not {betas} and {epsilon}")
        self.betas, self.epsilon = betas, epsilon

    def begin_step(self):
        """Compute lr s / (1 - β₁ᵗ) and ε s, with s = √(1 - β₂ᵗ)."""
        beta1, beta2 = self.betas
        s = math.sqrt(1 - beta2**self.num_steps)
        self._rate = self.lr * s / (1 - beta1**self.num_steps)
        self._epsilon = self.epsilon * s

    def compute_step(self, g, scratch, m, v):
        """Move m and v, and return lr m̂ / (√v̂ + ε)."""
        beta1, beta2 = self.betas
        np.multiply(g, 1 - beta1, out=scratch)
        m *= beta1
        m += scratch
        np.multiply(g, g, out=scratch)
        scratch *= 1 - beta2
        v *= beta2
        v += scratch
        np.sqrt(v, out=scratch)
        scratch += self._epsilon
        np.divide(m, scratch, out=scratch)
        scratch *= self._rate
        return scratch


class AdamW(Adam):
    """Adam with decoupled weight decay: p shrinks by the factor 1 - lr · weight_decay."""

    default_decay, decoupled = 0.01, True
