"""Parameters: leaves that are learned, and how their values begin."""

from collections.abc import Callable

import numpy as np

from ..autograd import GradientSlot, Tensor
from ..shape_array import ShapeArray

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Initial values 0."""
    return np.zeros(shape)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Initial values 1."""
    return np.ones(shape)


def normal(std: float) -> Initializer:
    """Initial values from the normal distribution of mean 0."""
    return lambda rng, shape: rng.standard_normal(shape) * std


class Parameter(Tensor):
    """A leaf of a model: a Tensor that always takes a gradient and knows its initial values."""

    __slots__ = ("initial",)

    def __init__(self, shape: tuple[int, ...], initial: Initializer):
        super().__init__(ShapeArray(shape, np.float32))
        self.edge = GradientSlot(weight_only=True)
        self.initial = initial

    @property
    def initialized(self) -> bool:
        """Whether it has numbers, not only a shape."""
        return not isinstance(self.data, ShapeArray)
