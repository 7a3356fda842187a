"""Shapes and dtypes of the results of NumPy's functions, for shape-only arrays (`shape_array.py`).

    (8, 1, 64) * (64, 64)              → (8, 64, 64)        axes broadcast from the right
    (8, 12, 64) @ (12, 64, 5)          → refused: 8 and 12 neither match nor are 1
    float32 * 2.0 → float32            float32 * float64 → float64         (NEP 50)

Tables say which public functions are known: CREATORS make an array from a shape, VIEWS (in
`shape_layout.py`) arrange the same elements differently, HANDLERS compute.  A function in none of
them raises a TypeError that names it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .shape_layout import Shape, broadcast_shapes


def is_shape_only(array: Any) -> bool:
    """True if `array` is a ShapeArray: it can make others like itself."""
    return hasattr(array, "new_array")


def _result(shape: Any, dtype: Any, sources: Any, out: Any = None, casting: str = "same_kind"):
    """A new array in the memory of the first source that has one, or `out` if that can hold it."""
    if out is None:
        known = [a for a in sources if is_shape_only(a)]
        return next((a for a in known if a.memory is not None), known[0]).new_array(shape, dtype)
    if not is_shape_only(out):
        raise TypeError("a result without numbers cannot be put into out= with numbers: make it "
                        "with np.empty_like of an operand")
    if out.shape != tuple(shape):
        raise ValueError(f"the result has shape {tuple(shape)}, but out= has {out.shape}")
    if not np.can_cast(dtype, out.dtype, casting):
        raise TypeError(f"the result is {dtype}, but out= holds {out.dtype}: convert with astype")
    return out


# ---- ufuncs

def call(ufunc: np.ufunc, *inputs: Any, out: tuple | None = None, dtype: Any = None,
         where: Any = True, casting: str = "same_kind", **options: Any) -> Any:
    """ufunc(*inputs), element by element or (matmul) matrix by matrix."""
    if options or ufunc.signature and ufunc is not np.matmul:
        raise TypeError(f"np.{ufunc.__name__} {[*options]} is not known for shape-only arrays")
    arrays = [a if hasattr(a, "dtype") else np.asarray(a) for a in inputs]
    types = [type(a) if type(a) in (int, float, complex) else array.dtype     # a weak scalar
             for a, array in zip(inputs, arrays)]
    outs = out or (None,) * ufunc.nout
    signature = {} if dtype is None else {
        "signature": (*[None] * ufunc.nin, *[np.dtype(dtype)] * ufunc.nout)}
    dtypes = ufunc.resolve_dtypes((*types, *[None] * ufunc.nout), casting=casting,
                                  **signature)[ufunc.nin:]
    if ufunc is np.matmul:
        shape = _matmul_shape(*[a.shape for a in arrays])
    else:
        shape = broadcast_shapes(np.shape(where), *[a.shape for a in arrays],
                                    *[o.shape for o in outs if o is not None])
    results = [_result(shape, d, (*arrays, where), o, casting) for d, o in zip(dtypes, outs)]
    return results[0] if ufunc.nout == 1 else tuple(results)


def _matmul_shape(a: Shape, b: Shape) -> Shape:
    if not a or not b:
        raise ValueError(f"matmul: {a} @ {b}: both need at least one axis; multiply with *")
    first, second = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    if first[-1] != second[-2]:
        raise ValueError(f"matmul: {a} @ {b}: the inner sizes {first[-1]} and {second[-2]} differ")
    return (*broadcast_shapes(first[:-2], second[:-2]), *a[-2:-1], *b[1:][-1:])


def reduced_shape(shape: Shape, axis: int | Shape | None, keepdims: bool = False) -> Shape:
    """`shape` without the axes in `axis` (None for all), or with them of length 1."""
    axes = range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))
    return tuple([1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes])


def reduce(ufunc: np.ufunc, array: Any, axis: int | Shape | None = 0, dtype: Any = None,
           out: tuple | None = None, keepdims: bool = False, initial: Any = None,
           where: Any = True) -> Any:
    """ufunc.reduce: sums, maxima, products along axes."""
    shape = reduced_shape(array.shape, axis, keepdims)
    if ufunc.identity is None and initial is None and 0 in array.shape and 0 not in shape:
        raise ValueError(f"{ufunc.__name__} of no elements: shape {array.shape} along axis {axis}")
    dtype = dtype or ufunc.resolve_dtypes((None, array.dtype, None), reduction=True)[-1]
    return _result(shape, dtype, (array, where), out[0] if out else None)


def reduction(ufunc: np.ufunc) -> Callable:
    """The reduction of a ufunc, such as np.sum from np.add."""
    return lambda a, axis=None, **options: ufunc.reduce(a, axis=axis, **options)


def mean(a: Any, axis: int | Shape | None = None, dtype: Any = None, **options: Any) -> Any:
    """np.mean: integers become float64."""
    return np.add.reduce(a, axis=axis, **options, dtype=dtype or (
        a.dtype if a.dtype.kind in "fc" else np.float64))


# ---- other functions, with NumPy's own parameters

def _result_type(*arrays):
    return np.result_type(*[a.dtype if is_shape_only(a) else a for a in arrays])


def _einsum(spec, *operands, out=None, dtype=None, optimize=False):
    inputs, arrow, output = spec.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != len(operands):
        raise ValueError(f"einsum {spec!r} of {len(operands)} operands: expected one term for each "
                         "and an explicit '->'")
    sizes, dots = {}, ()                                    # of the letters; of what "..." is
    for term, shape in zip(terms, map(np.shape, operands)):
        before, ellipsis, after = term.partition("...")
        end = len(shape) - len(after)
        if end < len(before) or end > len(before) and not ellipsis:
            raise ValueError(f"einsum {spec!r}: the term {term!r} does not fit shape {shape}")
        dots = broadcast_shapes(dots, shape[len(before):end])
        for letter, n in zip(before + after, shape[:len(before)] + shape[end:]):
            known = sizes.get(letter, 1)
            if known != n and 1 not in (known, n):
                raise ValueError(f"einsum {spec!r}: {letter!r} is {known} and {n}")
            sizes[letter] = n if known == 1 else known
    before, ellipsis, after = output.partition("...")
    if not sizes.keys() >= set(before + after) or dots and not ellipsis:
        raise ValueError(f"einsum {spec!r}: the output {output!r} has a letter that no input has, "
                         "or lacks '...'")
    shape = (*[sizes[c] for c in before], *dots, *[sizes[c] for c in after])
    return _result(shape, dtype or _result_type(*operands), operands, out)


def _broadcast(arrays, typed, out=None):
    shape = broadcast_shapes(*map(np.shape, arrays))
    return _result(shape, _result_type(*typed), arrays, out)


def _where(condition, *choices):
    if len(choices) != 2:
        raise TypeError("np.where(condition) needs numbers: give it both choices")
    return _broadcast((condition, *choices), choices)


def _clip(a, a_min=None, a_max=None, out=None):
    arrays = [x for x in (a, a_min, a_max) if x is not None]
    return _broadcast(arrays, arrays, out)


def _check_fits(src: Any, dst: Any, whole: Shape) -> None:
    if not is_shape_only(dst):
        raise TypeError(f"no numbers to put into the {type(dst).__name__} of shape {dst.shape}")
    shape = np.shape(src)
    while len(shape) > len(whole) and shape[0] == 1:    # NumPy drops leading ones
        shape = shape[1:]
    if len(shape) > len(whole) or any(n not in (1, m) for n, m in zip(shape[::-1], whole[::-1])):
        raise ValueError(f"values of shape {shape} do not fit into shape {whole}")


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """np.copyto: checks that `src` fits into `dst`."""
    _check_fits(src, dst, dst.shape)
    _check_fits(where, dst, dst.shape)
    weak = type(src) in (int, float, complex) and np.result_type(dst.dtype, src) == dst.dtype
    dtype = src.dtype if hasattr(src, "dtype") else np.asarray(src).dtype
    if not weak and not np.can_cast(dtype, dst.dtype, casting):
        raise TypeError(f"{dtype} cannot be put into {dst.dtype} by casting {casting!r}")


def _take(a, indices, axis=None, out=None, mode="raise"):
    shape = np.shape(indices)
    if axis is not None:
        axis = normalize_axis_index(axis, a.ndim)
        shape = (*a.shape[:axis], *shape, *a.shape[axis + 1:])
    return _result(shape, a.dtype, (a,), out)


def _along_axis(shape: Shape, ids: Shape, axis: int | None) -> Shape:
    """The shape of the elements that `ids` take along `axis`: theirs, other axes broadcasting."""
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    if len(shape) != len(ids):
        raise ValueError(f"indices of shape {ids} need as many axes as the array of shape {shape}")
    axis = normalize_axis_index(axis, len(shape))
    return broadcast_shapes((*shape[:axis], ids[axis], *shape[axis + 1:]), ids)


def _take_along_axis(arr, indices, axis=-1):
    return _result(_along_axis(arr.shape, indices.shape, axis), arr.dtype, (arr, indices))


def _put_along_axis(arr, indices, values, axis):
    _check_fits(values, arr, _along_axis(arr.shape, indices.shape, axis))


def _concatenate(arrays, axis=0, out=None, dtype=None, casting="same_kind"):
    shapes = [np.shape(a) if axis is not None else (np.size(a),) for a in arrays]
    axis = normalize_axis_index(axis or 0, len(shapes[0]))
    if len({(*s[:axis], -1, *s[axis + 1:]) for s in shapes}) > 1:
        raise ValueError(f"concatenate along axis {axis}: other axes differ in {shapes}")
    shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1:])
    return _result(shape, dtype or _result_type(*arrays), arrays, out, casting)


def _stack(arrays, axis=0, **options):
    if len(set(map(np.shape, arrays))) > 1:
        raise ValueError(f"stack: shapes differ: {[*map(np.shape, arrays)]}")
    return np.concatenate([np.expand_dims(a, axis) for a in arrays], axis, **options)


def _like(a, dtype=None, order="K", subok=True, shape=None, device=None):
    return a.new_array(a.shape if shape is None else shape, dtype)


def _asarray(like, values, dtype=None, contiguous=False, **options):
    if is_shape_only(values):
        return values.astype(dtype or values.dtype,
                             copy=contiguous and not values.flags.c_contiguous)
    return like.new_array(np.shape(values), dtype or np.asarray(values).dtype, numbers=values)


# Called as np.zeros(shape, like=x); a rule gets x first.
CREATORS: dict[Callable, Callable] = {
    **dict.fromkeys((np.empty, np.zeros, np.ones), lambda like, shape, dtype=float, **options: (
        like.new_array(shape, dtype))),
    np.full: lambda like, shape, fill_value, dtype=None, **options: (
        like.new_array(shape, dtype or np.asarray(fill_value).dtype)),
    np.arange: lambda like, *bounds, dtype=int: like.new_array(len(range(*bounds)), dtype),
    np.asarray: _asarray, np.ascontiguousarray: partial(_asarray, contiguous=True),
}
HANDLERS: dict[Callable, Callable] = {
    **dict.fromkeys((np.empty_like, np.zeros_like, np.ones_like), _like),
    **dict.fromkeys((np.argmax, np.argmin), lambda a, axis=None, out=None, keepdims=False: (
        _result(reduced_shape(a.shape, axis, keepdims), np.intp, (a,), out))),
    **dict.fromkeys((np.triu, np.tril), lambda a, k=0: a.new_array(
        a.shape if a.ndim > 1 else 2 * a.shape)),
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim, np.result_type: _result_type,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
    np.sum: reduction(np.add), np.prod: reduction(np.multiply), np.max: reduction(np.maximum),
    np.min: reduction(np.minimum), np.any: reduction(np.logical_or),
    np.all: reduction(np.logical_and), np.mean: mean, np.einsum: _einsum, np.copyto: copyto,
    np.full_like: lambda a, fill_value, *args, **options: _like(a, *args, **options),
    np.copy: lambda a, **options: a.copy(), np.ravel: lambda a: a.ravel(),
    np.reshape: lambda a, shape, **options: a.reshape(shape, **options),
    np.concatenate: _concatenate, np.stack: _stack, np.where: _where, np.clip: _clip,
    np.take: _take, np.take_along_axis: _take_along_axis, np.put_along_axis: _put_along_axis,
}
