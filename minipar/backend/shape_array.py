"""Arrays with a shape and a dtype but no numbers: run a model on them to count what it costs.

    memory = Memory()
    x = ShapeArray((2048, 12288), np.float32, memory)       # 100 MB that are never allocated
    y = np.exp(x) @ w                                       # y.shape, y.dtype, memory.peak

NumPy hands every ufunc to `__array_ufunc__` and every other public function to
`__array_function__` below, which compute the shape by the rules of `shape_rules.py`.  So code
written for NumPy runs unchanged; an operation that needs numbers raises TypeError.  Views follow
`shape_layout.py`.  A new array is C-contiguous, and a reshape that NumPy can only do by copying is
a copy here too.

Source: NEP 13 (`__array_ufunc__`), NEP 18 (`__array_function__`), NEP 50 (dtypes of results).
"""

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from . import shape_layout as layouts
from . import shape_rules as rules
from .shape_layout import Flags, StridedLayout


class Memory:
    """Bytes of the shape-only arrays that are alive now (`live`) and at most so far (`peak`)."""

    def __init__(self):
        self.live = self.peak = 0

    def add(self, num_bytes: int) -> None:
        """Count an array of `num_bytes` that was made, or (negative) freed."""
        self.live += num_bytes
        self.peak = max(self.peak, self.live)


class ShapeArray(NDArrayOperatorsMixin):
    """An array of `shape` and `dtype` without data.

    Results of computations inherit its `memory`.  Every array that is no view adds its bytes to
    that memory while it is alive.  A view holds the owner of the bytes as `base`, and begins at
    byte `offset` of it.
    """

    base = memory = None    # until __init__ is through, so that __del__ finds nothing to return
    numbers: Any = None     # those that it stands for, if it was made from some
    offset = 0

    def __init__(self, shape: int | tuple[int, ...], dtype: Any, memory: Memory | None = None,
                 base: "ShapeArray | None" = None, strides: tuple[int, ...] | None = None):
        shape = shape if isinstance(shape, tuple | list) else (shape,)
        self.shape = tuple([operator.index(n) for n in shape])
        if any(n < 0 for n in self.shape):
            raise ValueError(f"sizes are not negative: got shape {self.shape}")
        self.dtype = np.dtype(dtype)
        self.strides = strides or layouts.in_order(self.shape, self.dtype.itemsize).strides
        if base is not None:
            self.base, self.memory = base if base.base is None else base.base, base.memory
        elif memory is not None:
            memory.add(self.nbytes)
            self.memory = memory

    def __del__(self):
        if self.memory is not None and self.base is None:
            self.memory.add(-self.nbytes)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    flags: Flags = property(lambda self: layouts.flags(self._layout(), self.itemsize))
    T = property(lambda self: self.transpose())

    def __repr__(self) -> str:
        return f"ShapeArray({self.shape}, {self.dtype})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator["ShapeArray"]:
        return (self[i] for i in range(len(self)))

    def _refuse(self, *args, **kwargs):
        raise TypeError(f"{self!r} has no numbers: keep values out of control flow, and make arrays"
                        " with np.empty(shape, x.dtype, like=x) so that x decides where they live")

    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = tolist = item = _refuse

    # ---- views

    def _layout(self) -> StridedLayout:
        return StridedLayout(self.shape, self.strides)

    def view_at(self, layout: Any, dtype: Any = None) -> "ShapeArray":
        """The view of that shape, strides and offset."""
        view = ShapeArray(layout.shape, dtype or self.dtype, base=self, strides=layout.strides)
        view.offset = self.offset + layout.offset
        return view

    def __getitem__(self, index: Any) -> "ShapeArray":
        parts = index if isinstance(index, tuple) else (index,)
        if layouts.picks_elements(parts, self.ndim):
            return self.new_array(layouts.broadcast_shapes(*[part.shape for part in parts]))
        if len(parts) == 1 and layouts.is_integers(parts[0]):
            return np.take(self, parts[0], axis=0)
        for part in parts:
            if isinstance(part, bool) or not (part is None or part is Ellipsis or isinstance(
                    part, int | slice | np.integer)):
                raise TypeError(f"an index of integers and slices was expected, not {part!r}: use "
                                "np.where for masks, np.take or np.take_along_axis for rows")
        return self.view_at(layouts.index(self._layout(), parts))

    def __setitem__(self, index: Any, value: Any) -> None:
        rules.copyto(self[index], value, casting="unsafe")

    def reshape(self, *shape: Any, order: str = "C") -> "ShapeArray":
        """A view of a different shape; a copy where the elements are not in the right order."""
        if order != "C":
            raise ValueError(f"only order='C' is known, not {order!r}")
        lengths = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
        new_shape = layouts.completed(tuple(map(operator.index, lengths)), self.size)
        view = layouts.reshape(self._layout(), new_shape, self.itemsize)
        return self.new_array(new_shape) if view is None else self.view_at(view)

    def ravel(self) -> "ShapeArray":
        """All elements in a row: a view if they lie so, else a copy."""
        return self.reshape(-1) if self.flags.c_contiguous else self.new_array(self.size)

    def transpose(self, *axes: Any) -> "ShapeArray":
        """A view with the axes in a different order; reversed if none are given."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return self.view_at(layouts.transpose(self._layout(), order))

    def swapaxes(self, axis1: int, axis2: int) -> "ShapeArray":
        """A view with two axes exchanged."""
        return self.view_at(layouts.swapaxes(self._layout(), axis1, axis2))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> "ShapeArray":
        """A view without the axes of length 1."""
        return self.view_at(layouts.squeeze(self._layout(), axis))

    def view(self, dtype: Any = None) -> "ShapeArray":
        """A view; with `dtype`, the same bytes read as a different type."""
        new = np.dtype(dtype or self.dtype)
        return self.view_at(layouts.cast(self._layout(), self.itemsize, new.itemsize), new)

    # ---- new arrays

    def new_array(self, shape: Any, dtype: Any = None, numbers: Any = None) -> "ShapeArray":
        """Another array in the same memory; of the same dtype if none is given."""
        array = ShapeArray(shape, self.dtype if dtype is None else dtype, self.memory)
        array.numbers = numbers
        return array

    def copy(self, order: str = "C") -> "ShapeArray":
        """A new array of the same shape and dtype."""
        return self.new_array(self.shape)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def astype(self, dtype: Any, copy: bool = True) -> "ShapeArray":
        """A new array of a different dtype; itself if nothing changes and `copy` is false."""
        return self.new_array(self.shape, dtype) if copy or np.dtype(dtype) != self.dtype else self

    def fill(self, value: Any) -> None:
        """Nothing to do: there are no numbers."""

    sum, prod = rules.reduction(np.add), rules.reduction(np.multiply)
    max, min = rules.reduction(np.maximum), rules.reduction(np.minimum)
    mean = rules.mean

    # ---- NumPy's protocols

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        rule = {"__call__": rules.call, "reduce": rules.reduce}.get(method)
        return NotImplemented if rule is None else rule(ufunc, *inputs, **options)

    def __array_function__(self, func, types, args, kwargs):
        if func in rules.CREATORS:                            # np.zeros(shape, like=x)
            return rules.CREATORS[func](self, *args, **kwargs)
        if func in layouts.VIEWS:
            result = layouts.VIEWS[func](args[0]._layout(), *args[1:], **kwargs)
            return [args[0].view_at(layout) for layout in result] if isinstance(result, list) else (
                args[0].view_at(result))
        return rules.HANDLERS[func](*args, **kwargs) if func in rules.HANDLERS else NotImplemented
