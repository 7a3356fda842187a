"""The multi-layer perceptron: linear layers with a non-linearity between them."""

import math
from collections.abc import Sequence

from ..autograd import Tensor
from ..backend import Array
from .layers import Activation, CrossEntropy, Dropout, Linear
from .module import Module, Sequential
from .parameter import normal


class MLP(Sequential):
    """x (batch, sizes[0]) → (batch, sizes[-1]).

    `MLP([64, 32, 10])` is Linear, activation, Linear; its parameters are `0.weight`, `0.bias`,
    `2.weight`, `2.bias`.  With `dropout`, a Dropout layer, numbered like the others, follows
    each activation.  Weights start at a standard deviation of √(2 / fan-in), He et al. 2015.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu", dropout: float = 0.0):
        if len(sizes) < 2 or any(size < 1 for size in sizes):
            raise ValueError(f"an MLP needs two or more positive sizes, not {list(sizes)}")
        layers: list[Module] = []
        for i, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
            if i:
                layers.append(Activation(activation))
                if dropout:
                    layers.append(Dropout(dropout))
            layers.append(Linear(fan_in, fan_out, initializer=normal(math.sqrt(2 / fan_in))))
        super().__init__(*layers)
        self.sizes, self.cross_entropy = tuple(sizes), CrossEntropy(self)

    def logits(self, x: Array) -> Tensor:
        """The output for an array x (batch, sizes[0])."""
        return self(x if isinstance(x, Tensor) else Tensor(x))

    def criterion(self, logits: Tensor, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy of the labels (batch,) under logits (batch, classes)."""
        return self.cross_entropy(logits, labels, loss_divisor, self.ignore_index)

    def loss(self, x: Array, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy of the labels (batch,), summed and divided by `loss_divisor`.

        `loss_divisor` is by default the number of labels other than `ignore_index`.
        """
        return self.criterion(self.logits(x), labels, loss_divisor)
