"""A pipeline whose first stage has one weight w and the loss w² / 2, and others that do nothing.

PipeDream's first stage is p - 1 steps late: so its runs show which learning rates are stable.
"""

import numpy as np

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import Module, Parameter, Sequential
from minipar.nn.parameter import normal, zeros
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch


class Weight(Module):
    """Its output is its weight, whatever its input; or, if it passes, its input."""

    def __init__(self, passes):
        super().__init__()
        self.passes = passes
        self.weight = Parameter((1,), zeros if passes else normal(1.0))

    def forward(self, x):
        """x (rows, 1) → (rows, 1)."""
        return x + 0 * self.weight if self.passes else 0 * x + self.weight


class Quadratic(Sequential):
    """A weight, and `delay` parts that pass its value on."""

    def __init__(self, delay):
        super().__init__(Weight(passes=False), *(Weight(passes=True) for _ in range(delay)))

    def criterion(self, y, targets, divisor):
        """Σ y² / (2 divisor)."""
        return (y * y).sum() * (0.5 / divisor)


def weights(delay: int, lr: float, steps: int = 400) -> np.ndarray:
    """The first stage's weight after each step, as a multiple of that at the beginning."""
    def body(comm):
        model = Quadratic(delay).initialize(0, np.float64)
        strategy = make_strategy("pipedream", model, DeviceMesh(comm, pp=comm.size))
        strategy.optimizer = SGD(strategy.slabs, lr=lr)
        found, step = [float(strategy.slabs[0].data[0])], strategy.step_stage

        def recorded(k):
            step(k)
            found.append(float(strategy.slabs[0].data[0]))
        strategy.step_stage = recorded
        batch = Microbatch(np.zeros((1, 1)), np.zeros(1, int), np.array([0]))
        strategy.forward_backward([batch] * steps)
        return found
    found = np.array(Cluster(delay + 1).run(body)[0][0])
    return found[1:] / found[0]
