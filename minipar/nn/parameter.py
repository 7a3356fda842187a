"""Parameters: the leaves that are learned, and their initial values."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..autograd import GradientSlot, Tensor
from ..autograd.tensor import clock
from ..backend import Array, asarray_like, to_host

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Initial values 0."""
    return np.zeros(shape)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Initial values 1."""
    return np.ones(shape)


def normal(std: float) -> Initializer:
    """Initial values from the normal distribution of mean 0 and standard deviation `std`."""
    return lambda rng, shape: rng.standard_normal(shape) * std


def slice_box(values: Array, box: tuple[tuple[int, int], ...],
              order: tuple[int, ...] | None = None) -> Array:
    """The box of `values`: a (start, stop) pair for each axis.

    `order`, if any, first reorders the last axis, unless `values` are shape-only.
    """
    if order is not None and not hasattr(values, "new_array"):
        values = np.take(values, asarray_like(order, values), axis=-1)
    return values[tuple(slice(*bounds) for bounds in box)]


def mark_changed(parameters: Iterable[Tensor]) -> None:
    """Note that the values of these leaves have changed in place.

    Backward through a graph that used the old values then raises RuntimeError.
    """
    for parameter in parameters:
        parameter.grad_target.changed_at = next(clock)      # type: ignore[union-attr]


@contextmanager
def changing_copies(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Context for changing leaves whose values are now in new arrays.

    Graphs made before hold the old arrays, so backward through them stays allowed.
    """
    slots = [parameter.slot for parameter in parameters]
    changed = [slot.changed_at for slot in slots]
    yield
    for slot, when in zip(slots, changed):
        slot.changed_at = when


class Unmaterialized:
    """The shape and dtype of a parameter without numbers: not drawn yet, or on other ranks.

    It is like PyTorch's meta tensors and JAX's ShapeDtypeStruct.  Any computation with it raises
    TypeError, whose message ends with `remedy`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype | type,
                 remedy: str = "call model.initialize(seed), or let its strategy compute"):
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        self.size = math.prod(shape)
        self.nbytes, self.remedy = self.size * self.dtype.itemsize, remedy

    def _refuse(self, *arguments, **options):
        raise TypeError(f"this parameter {self.shape} has a shape but no numbers here: "
                        f"{self.remedy}")

    def __repr__(self) -> str:
        return f"Unmaterialized({self.shape}, {self.dtype})"

    __array_ufunc__ = __array_function__ = __array__ = __getitem__ = reshape = astype = _refuse
    T = property(_refuse)


class RemovableHandle(NamedTuple):
    """A function that alters what a use of a parameter, or a call of a module, sees."""

    functions: list         # all of that parameter or module, in the order in which they apply
    function: Callable

    def remove(self) -> None:
        """Take the function out again."""
        self.functions.remove(self.function)


class Parameter(Tensor):
    """A leaf of a model: a Tensor that always takes a gradient and knows its initial values.

    It may be a part of a global parameter of `global_shape`: the `box`, a (start, stop) pair for
    each axis.  An `order`, if any, reorders the last axis before the box is cut out.  So the q, k
    and v columns of one rank's heads can lie side by side.  `replicated` names the mesh axes along
    which every rank holds the same values.  After `data -= …` backward refuses a graph that used
    the old values; after a write into `data[…]` call `mark_changed`.

    A module that uses it sees the result of its `transforms`, which `on_use` adds.  `cut_by`, if
    not None, gathers the boxes of all ranks (`TensorSplit.gather`).
    """

    __slots__ = ("initializer", "global_shape", "box", "order", "replicated", "cut_by",
                 "transforms")

    def __init__(self, shape: tuple[int, ...], initializer: Initializer):
        super().__init__(Unmaterialized(shape, np.float32))
        self.grad_target, self.initializer = GradientSlot(weight_only=True), initializer
        self.global_shape, self.box = tuple(shape), tuple((0, n) for n in shape)
        self.order: tuple[int, ...] | None = None
        self.replicated: tuple[str, ...] = ()
        self.cut_by: Any = None
        self.transforms: list[Callable[[Tensor], Tensor]] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name == "data" and value is getattr(self, "data", None) and self.initialized:
            mark_changed([self])            # data -= …, in place
        super().__setattr__(name, value)

    def on_use(self, transform: Callable[[Tensor], Tensor], first: bool = False) -> RemovableHandle:
        """Let each use by a module (`module.weight`) see `transform(parameter)` from now on.

        It is applied after the transforms that are there; with `first`, before them.
        """
        self.transforms.insert(0 if first else len(self.transforms), transform)
        return RemovableHandle(self.transforms, transform)

    def local_part(self, values: Array) -> Array:
        """The part of the global parameter `values` that this rank holds."""
        return slice_box(values, self.box, self.order)

    def whole(self, values: Array) -> np.ndarray:
        """A host copy of the global array; `values` are this rank's part, in any shape.

        Collective over the ranks that have the other parts.
        """
        if self.cut_by is None:
            return np.array(to_host(values)).reshape(self.shape)
        return self.cut_by.gather(self, to_host(values))

    def shard(self, box: tuple[tuple[int, int], ...], order: tuple[int, ...] | None = None,
              cut_by: Any = None) -> None:
        """Keep only the part `box`.  Raises ValueError if it is a part already."""
        if self.shape != self.global_shape:
            raise cut_again_error(self)
        self.box, self.order, self.cut_by = box, order, cut_by
        self.data = self.local_part(self.data).copy() if self.initialized \
            else Unmaterialized(tuple(stop - start for start, stop in box), self.dtype)

    # True if this parameter has numbers, not only a shape.
    initialized = property(lambda self: not isinstance(self.data, Unmaterialized))


def cut_again_error(parameter: Parameter) -> ValueError:
    """The error of cutting a parameter a second time."""
    return ValueError(f"this is a part {parameter.box} of a parameter {parameter.global_shape}, "
                      "which is cut only once: build a new model")
