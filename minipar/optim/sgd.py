"""Stochastic gradient descent, with momentum (Polyak 1964) and Nesterov's (Sutskever et al. 2013).

    g ← g + weight_decay p,   v ← momentum v + g,   p ← p - lr v
                                                    p ← p - lr (g + momentum v)     with Nesterov

v begins as 0.  Without momentum v is g, and no state is kept.
"""

from collections.abc import Sequence

import numpy as np

from ..nn.slab import FlatBuffer
from .groups import ParameterGroup
from .optimizer import Optimizer


class SGD(Optimizer):
    """PyTorch's equations and defaults: the learning rate multiplies the velocity."""

    flops_per_parameter = 6

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1e-3, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False,
                 groups: Sequence[ParameterGroup] = ()):
        if nesterov and not momentum:
            raise ValueError("Nesterov momentum needs momentum > 0, e.g. momentum=0.9")
        self.state_names = ("velocity",) if momentum else ()
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(slabs, lr, weight_decay, groups)

    def compute_step(self, g, scratch, velocity=None):
        """Move v, and return lr v, or lr (g + momentum v) with Nesterov."""
        if velocity is None:
            return np.multiply(g, self.lr, out=scratch)
        velocity *= self.momentum
        velocity += g
        if not self.nesterov:
            return np.multiply(velocity, self.lr, out=scratch)
        np.multiply(velocity, self.momentum, out=scratch)
        scratch += g
        scratch *= self.lr
        return scratch
