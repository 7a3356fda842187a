"""An array that behaves as CuPy's where there is no GPU: it has numbers, and refuses the host's.

    x = StrictArray(np.ones(3))     np.exp(x) + 1       a StrictArray, computed by NumPy
                                    x + np.ones(3)      TypeError: a host array beside a device's
                                    np.asarray(x)       TypeError: x.get() says it
                                    np.add.at(x, …)     TypeError: methods of ufuncs do not dispatch

Only functions that CuPy has are known (CuPy 14: hasattr(cupy, name)).  While `as_cupy` holds, what
`import cupy` gives is enough for minipar.
"""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.lib.stride_tricks import as_strided

FUNCTIONS = """
    all any arange argmax argsort array_split ascontiguousarray broadcast_to clip concatenate
    copyto count_nonzero cumsum diff einsum empty empty_like expand_dims full full_like max mean
    min moveaxis ndim nonzero ones ones_like packbits pad partition prod put_along_axis qr ravel
    repeat reshape searchsorted shape size sort split squeeze stack std sum swapaxes take
    take_along_axis tensordot tile transpose tril triu unpackbits var where zeros zeros_like"""


class StrictArray(NDArrayOperatorsMixin):
    """`values`, on a device that does not exist; `base` is the array of which it is a view."""

    __cuda_array_interface__: dict = {}         # what CuPy arrays are known by

    def __init__(self, values: np.ndarray, base: "StrictArray | None" = None):
        self.values, self.base = values, base

    shape = property(lambda self: self.values.shape)
    strides = property(lambda self: self.values.strides)
    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)
    nbytes = property(lambda self: self.values.nbytes)
    itemsize = property(lambda self: self.values.itemsize)
    flags = property(lambda self: self.values.flags)
    T = property(lambda self: self.transpose())

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.values.__array_interface__["data"][0])

    def __repr__(self) -> str:
        return f"StrictArray({self.values!r})"

    # ---- to the host, when asked by name

    def get(self, stream=None, order="C", out=None, blocking=True) -> np.ndarray:
        """A copy on the host; into `out`, when the stream comes to it."""
        if out is None:
            return self.values.copy()
        assert not blocking and out.shape == self.shape
        stream.queue.append(lambda: np.copyto(out, self.values))
        return out

    def set(self, values: np.ndarray, stream=None) -> None:
        """Copy from the host, when the stream comes to it."""
        assert isinstance(values, np.ndarray)
        stream.queue.append(lambda: np.copyto(self.values, values))

    def item(self):
        return self.values.item()

    def tolist(self):
        return self.values.tolist()

    def __float__(self) -> float:
        return float(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator["StrictArray"]:
        return (self[i] for i in range(len(self)))

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion to a NumPy array is not allowed: use .get()")

    # ---- views and copies

    def view_of(self, values: np.ndarray) -> "StrictArray":
        """`values` as an array: a view of this one's memory, if it is one."""
        if owner_of(values) is not owner_of(self.values):
            return StrictArray(values)
        return StrictArray(values, self if self.base is None else self.base)

    def __getitem__(self, index):
        return self.view_of(np.asarray(self.values[unwrap(index)]))

    def __setitem__(self, index, value) -> None:
        self.values[unwrap(index)] = unwrap(value)

    def reshape(self, *shape, order="C"):
        return self.view_of(self.values.reshape(*shape, order=order))

    def ravel(self):
        return self.view_of(self.values.ravel())

    def transpose(self, *axes):
        return self.view_of(self.values.transpose(*axes))

    def swapaxes(self, a, b):
        return self.view_of(self.values.swapaxes(a, b))

    def squeeze(self, axis=None):
        return self.view_of(self.values.squeeze(axis))

    def view(self, dtype=None):
        return self.view_of(self.values.view(dtype or self.dtype))

    def copy(self, order="C"):
        return StrictArray(self.values.copy(order))

    def astype(self, dtype, copy=True):
        values = self.values.astype(dtype, copy=copy)
        return self if values is self.values else StrictArray(values)

    def fill(self, value) -> None:
        self.values.fill(unwrap(value))

    # ---- NumPy's protocols

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method != "__call__":
            raise TypeError(f"CuPy does not dispatch np.{ufunc.__name__}.{method}")
        result = ufunc(*unwrap(inputs), **unwrap(options))
        return options["out"][0] if "out" in options else wrap(result)

    def __array_function__(self, func, types_, args, kwargs):
        if func.__name__ not in FUNCTIONS.split() or func.__module__ not in (
                "numpy", "numpy.linalg"):
            raise TypeError(f"np.{func.__name__} is not known to dispatch to CuPy")
        if "device" in kwargs:          # np.full(…, like=x) has one in any case
            raise TypeError(f"{func.__name__}() got an unexpected keyword argument 'device'")
        if "shape" in kwargs and func.__name__.endswith("_like"):
            # CuPy 14 takes the shapes 0 and () for that of the array. If that is neither C- nor
            # Fortran-contiguous, the result gets no more memory than the array has.
            raise TypeError(f"np.{func.__name__}(x, shape=…): write np.empty(shape, dtype, like=x)")
        out = kwargs.get("out")
        result = func(*unwrap(args), **unwrap(kwargs))
        if out is not None:
            return out
        if isinstance(result, np.ndarray) and args and isinstance(args[0], StrictArray):
            return args[0].view_of(result)
        return wrap(result)


for name in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argsort", "repeat",
             "cumsum", "nonzero", "clip", "take", "std", "var"):
    setattr(StrictArray, name, lambda self, *args, name=name, **kwargs: wrap(
        getattr(self.values, name)(*unwrap(args), **unwrap(kwargs))))


def owner_of(values: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def wrap(result):
    """The result of a computation on the device."""
    if isinstance(result, np.ndarray):
        return StrictArray(result)
    if isinstance(result, np.generic):
        return StrictArray(np.asarray(result))      # CuPy's results have an array of no axes
    if isinstance(result, list | tuple) and any(isinstance(r, np.ndarray) for r in result):
        parts = map(wrap, result)
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


def unwrap(value):
    """The numbers of device arrays, for the computation; those of the host are refused."""
    if isinstance(value, StrictArray):
        return value.values
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type numpy.ndarray {value.shape} beside a device array")
    if isinstance(value, list | tuple):
        return type(value)(unwrap(part) for part in value)
    if isinstance(value, dict):
        return {key: unwrap(part) for key, part in value.items()}
    return value


class Device:
    """A GPU that does not exist; `used` are the numbers of those that were made current."""

    used: list[int] = []

    def __init__(self, number: int):
        self.number = number

    def use(self) -> None:
        Device.used.append(self.number)


class CUDARuntimeError(RuntimeError):
    """CuPy's error where the driver refuses a request."""


@contextmanager
def as_cupy(monkeypatch, num_gpus: int = 1) -> Iterator[types.ModuleType]:
    """Context in which `import cupy` finds strict arrays, and a number of GPUs."""
    module = types.ModuleType("cupy")
    module.ndarray, module.asarray = StrictArray, lambda values: StrictArray(np.array(values))
    module.empty = lambda shape, dtype=float: StrictArray(np.empty(shape, dtype))
    module.cuda = types.SimpleNamespace(Device=Device, runtime=types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: num_gpus))
    Device.used.clear()
    module.add = types.SimpleNamespace(at=lambda total, index, values: np.add.at(
        total.values, unwrap(index), unwrap(values)))
    module.lib = types.SimpleNamespace(stride_tricks=types.SimpleNamespace(
        as_strided=lambda array, shape, strides: array.view_of(
            as_strided(array.values, shape, strides))))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", module)
        yield module
