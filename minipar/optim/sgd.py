"""Stochastic gradient descent, with momentum (Polyak 1964) and Nesterov's (Sutskever et al. 2013).

    g ← g + weight_decay p,   v ← momentum v + g,   p ← p - lr v
                                                    p ← p - lr (g + momentum v)     with Nesterov

Without momentum v is g.  All numbers are changed in place.
"""

from collections.abc import Sequence

import numpy as np

from ..nn.slab import Slab
from .optimizer import Optimizer


class SGD(Optimizer):
    """PyTorch's equations and defaults: the learning rate multiplies the velocity."""

    flops_per_parameter = 6

    def __init__(self, slabs: Sequence[Slab], lr: float = 1e-3, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False):
        if nesterov and not momentum:
            raise ValueError("Nesterov momentum needs momentum > 0, e.g. momentum=0.9")
        self.state_names = ("velocity",) if momentum else ()
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        super().__init__(slabs, lr)

    def update(self, p, g, scratch, velocity=None):
        """See the module's docstring."""
        if self.weight_decay:
            g = np.add(np.multiply(p, self.weight_decay, out=scratch[0]), g, out=scratch[0])
        if velocity is not None:
            velocity *= self.momentum
            velocity += g
        if velocity is None or self.nesterov:
            p -= np.multiply(g, self.lr, out=scratch[1])
        if velocity is not None:
            rate = self.lr * (self.momentum if self.nesterov else 1)
            p -= np.multiply(velocity, rate, out=scratch[1])
