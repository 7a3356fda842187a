"""Arrays that count the floating-point operations that NumPy performs on them."""

import numpy as np

from minipar.autograd import Function, Tensor


class CountingArray(np.ndarray):
    """An array that adds the FLOPs of each NumPy call to `CountingArray.total`.

    1 for each element that a ufunc computes and for each that a reduction reads, 2 for each
    multiply-add of a product; 0 where the result is no float.
    """

    total = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        plain = [_plain(a) for a in inputs]
        if out:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*plain, **options)
        CountingArray.total += _ufunc_flops(ufunc, method, plain, result, options)
        if out:
            return out[0] if len(out) == 1 else out
        return None if result is None else np.asarray(result).view(CountingArray)

    def __array_function__(self, function, types, args, kwargs):
        if function is np.einsum:           # "…i->…" sums, "…i,…i->…" sums products
            script, *operands = args
            operands = [_plain(a) for a in operands]
            result = np.asarray(np.einsum(script, *operands, **kwargs))
            letters = operands[0].size
            CountingArray.total += letters * (2 if len(operands) == 2 else 1)
            return result.view(CountingArray)
        if function in (np.where, np.arange, np.empty, np.zeros, np.full):   # forget the subclass
            return function(*map(_plain, args), **kwargs).view(CountingArray)
        return super().__array_function__(function, types, args, kwargs)


def _plain(array):
    return array.view(np.ndarray) if isinstance(array, CountingArray) else array


def _ufunc_flops(ufunc, method: str, inputs: list, result, options: dict) -> int:
    floats = inputs[0] if method == "at" else result
    if np.asarray(floats).dtype.kind != "f":
        return 0
    if method == "at":
        return np.size(inputs[2])
    if method == "reduce":
        return inputs[0].size
    assert method == "__call__", method
    return 2 * np.size(result) * inputs[0].shape[-1] if ufunc is np.matmul else np.size(result)


def counting_apply(cls, *inputs, **options) -> Tensor:
    """Function.apply on counting arrays, to be put in its place."""
    for x in inputs:
        if isinstance(x, Tensor):
            x.data = x.data.view(CountingArray)
    inputs = [x.view(CountingArray) if isinstance(x, np.ndarray) else x for x in inputs]
    return _apply.__func__(cls, *inputs, **options)


_apply = Function.apply
