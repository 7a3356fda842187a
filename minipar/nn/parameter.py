"""Parameters: leaves that are learned, and how their values begin."""

import math
from collections.abc import Callable

import numpy as np

from ..autograd import GradientSlot, Tensor
from ..backend import Array, asarray_like

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


def part_of(values: Array, box: tuple[tuple[int, int], ...],
            order: tuple[int, ...] | None = None) -> Array:
    """The box of `values` whose last axis is first brought into `order`, if one is given."""
    values = values if order is None else np.take(values, asarray_like(order, values), axis=-1)
    return values[tuple(slice(*bounds) for bounds in box)]


class Absent:
    """The shape and dtype of a parameter whose numbers are not here: not drawn yet, or elsewhere.

    Any computation with it raises TypeError, which says what to do instead, `mend`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype | type,
                 mend: str = "call model.initialize(seed), or let its strategy compute"):
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        self.size = math.prod(shape)
        self.nbytes, self.mend = self.size * self.dtype.itemsize, mend

    def _refuse(self, *arguments, **options):
        raise TypeError(f"this parameter {self.shape} has a shape but no numbers here: {self.mend}")

    def __repr__(self) -> str:
        return f"Absent({self.shape}, {self.dtype})"

    __array_ufunc__ = __array_function__ = __array__ = __getitem__ = reshape = astype = _refuse
    T = property(_refuse)


class Parameter(Tensor):
    """A leaf of a model: a Tensor that always takes a gradient and knows its initial values.

    It may be a part of a global parameter of `global_shape`: `box` is a (start, stop) pair for each
    axis, `order`, if any, says how the last axis is reordered before the box is cut out of it, and
    `replicated` names the mesh axes along which every rank holds the same values.
    """

    __slots__ = ("initial", "global_shape", "box", "order", "replicated")

    def __init__(self, shape: tuple[int, ...], initial: Initializer):
        super().__init__(Absent(shape, np.float32))
        self.edge = GradientSlot(weight_only=True)
        self.initial = initial
        self.global_shape, self.box = tuple(shape), tuple((0, n) for n in shape)
        self.order: tuple[int, ...] | None = None
        self.replicated: tuple[str, ...] = ()

    def take(self, values: Array) -> Array:
        """What is here of the global parameter `values`."""
        return part_of(values, self.box, self.order)

    def cut(self, box: tuple[tuple[int, int], ...], order: tuple[int, ...] | None = None) -> None:
        """Keep only a part.  Raises ValueError if it is a part already."""
        if self.shape != self.global_shape:
            raise ValueError(f"this is a part {self.box} of a parameter {self.global_shape}, which "
                             "is cut only once: build a new model")
        self.box, self.order = box, order
        self.data = self.take(self.data).copy() if self.initialized \
            else Absent(tuple(stop - start for start, stop in box), self.dtype)

    @property
    def initialized(self) -> bool:
        """Whether it has numbers, not only a shape."""
        return not isinstance(self.data, Absent)
