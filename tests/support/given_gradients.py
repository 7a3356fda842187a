"""A model whose gradients a test gives: its loss is Σ w·g."""

from collections.abc import Mapping

import numpy as np

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.nn import Module
from minipar.nn.chain import ChainPart, chain
from minipar.nn.parameter import Parameter, normal
from minipar.parallel.strategy import Microbatch


class GivenGradients(Module):
    """Parameters of these shapes by name, drawn by name; `given` are their next gradients."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype=np.float64):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, Parameter(shape, normal(1.0)))
        self.given: Mapping[str, np.ndarray] = {}
        self.initialize(0, dtype)

    def loss(self, inputs, targets, loss_divisor):
        products = [ag.sum(getattr(self, name) * Tensor(np.asarray(g, getattr(self, name).dtype)))
                    for name, g in self.given.items()]
        return sum(products[1:], start=products[0]) * (len(targets) / loss_divisor)


@chain.register
def _(model: GivenGradients) -> list[ChainPart]:
    return [ChainPart("all", model, [model], False)]


def step_along(strategy, optimizer, given, scale: float = 1.0) -> None:
    """A step in which this rank's gradient is `given` by name, and the sum is that of all ranks.

    Each rank has one target: data-parallel ranks share the loss, so `given` is multiplied by their
    number here, but not for strategies whose ranks train apart.
    """
    optimizer.zero_grad()
    gradients_along(strategy, given, scale)
    strategy.step(optimizer)


def gradients_along(strategy, given, scale: float = 1.0) -> None:
    """The gradients alone, without the optimizer's step."""
    shares = strategy.replicas.size
    strategy.model.given = {name: shares * np.asarray(g) for name, g in given.items()}
    none = np.zeros(1, np.int64)
    strategy.forward_backward([Microbatch(none, none, none)], scale=scale)
