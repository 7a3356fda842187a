"""Parameters: leaves that are learned, and how their values begin."""

import math
from collections.abc import Callable

import numpy as np

from ..autograd import GradientSlot, Tensor

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


class Absent:
    """The shape and dtype of a parameter whose numbers are not here: not drawn yet, or elsewhere.

    Any computation with it raises TypeError.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype | type):
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize

    def _refuse(self, *arguments, **options):
        raise TypeError(f"this parameter {self.shape} has a shape but no numbers here: call "
                        "model.initialize(seed), or let the strategy that sharded it compute")

    __array_ufunc__ = __array_function__ = __array__ = __getitem__ = reshape = astype = _refuse
    T = property(_refuse)


class Parameter(Tensor):
    """A leaf of a model: a Tensor that always takes a gradient and knows its initial values."""

    __slots__ = ("initial",)

    def __init__(self, shape: tuple[int, ...], initial: Initializer):
        super().__init__(Absent(shape, np.float32))
        self.edge = GradientSlot(weight_only=True)
        self.initial = initial

    @property
    def initialized(self) -> bool:
        """Whether it has numbers, not only a shape."""
        return not isinstance(self.data, Absent)
