"""Shape-only arrays say of every expression what NumPy says: the shape, the dtype or an error."""

import copy
import gc

import numpy as np
import pytest

from minipar.backend import allocate_zeros
from minipar.backend.shape_array import Memory, ShapeArray

F, D, H, I, B = (np.dtype(name) for name in ("f4", "f8", "f2", "i4", "?"))

# Over a (4, 6, 8) f4, b (6, 8) f4, d (8,) f8, h (6, 8) f2, i (4, 6, 8) i4, m (4, 6, 8) bool,
# s () f4, k (8, 5) f4, z (0, 3) f4 and ids (2, 3) i8.
EXPRESSIONS = """
a + b | a * 2.0 | 2 - a | a * d | h * 1.5 | h * np.float32(2) | i / 3 | i // 2 | -a | abs(i)
a ** 2 | a > 0 | (a > 0) & m | ~m | m * a | i * True | a + [1.0] * 8 | a * s | i + np.int64(1)
m + m | np.exp(h) | np.sqrt(i) | np.maximum(a, 0) | np.add(a, b, dtype=np.float64)
np.isfinite(a) | np.divmod(a, 2)[1] | np.square(i) | np.arctan2(b, h) | np.logical_not(a)
np.tanh(s) | a @ k | k.T @ d | d @ k | d @ d | a @ b.T | a @ a.swapaxes(1, 2)
i @ k.astype(np.int8) | h @ k | np.sum(a) | np.sum(a, axis=1) | a.sum(axis=(0, -1), keepdims=True)
i.sum() | m.sum(axis=0) | np.sum(h, axis=-1) | np.sum(i.astype(np.int8))
np.sum(a, axis=0, dtype=np.float64) | z.sum(axis=0) | np.max(a, axis=-1, keepdims=True)
a.min(axis=0) | np.min(i) | np.mean(a, axis=0) | i.mean() | h.mean(axis=(0, 1))
np.mean(a, dtype=np.float64, keepdims=True) | np.prod(i, axis=2) | a.max() | np.all(m)
np.any(m, axis=1) | np.argmax(a, axis=-1) | np.argmin(a) | np.add.reduce(a) | z.max(axis=1)
a.reshape(24, 8) | a.reshape((4, -1)) | a.transpose(2, 0, 1) | a.T | a.swapaxes(0, -1) | a.ravel()
a.transpose(0, 2, 1).reshape(4, -1) | np.reshape(a, (2, 2, 6, 8)) | s.reshape(1, 1)
z.reshape(3, 0) | a[0] | a[1, 2, 3] | a[..., -1] | a[:, None, 1:4] | a[::-2, 2:100] | a[1:1]
a[0][1][2] | s[None] | np.transpose(a, (1, 0, 2)) | np.expand_dims(a, (0, -1))
np.broadcast_to(b, (3, 6, 8)) | b[None].squeeze() | np.moveaxis(a, 0, -1)
np.squeeze(a[:1], axis=0) | np.swapaxes(a, 0, 1) | np.flip(a) | np.ravel(a[0])
np.split(a, 2, axis=1)[1] | np.array_split(a, 5, axis=2)[4] | np.split(a, [1, 3])[2]
h.view(np.uint16) | a.astype(np.float16) | a.copy() | np.copy(a)
np.ascontiguousarray(a.T, like=a) | np.ascontiguousarray(a, np.float64, like=a) | np.empty_like(a)
np.zeros_like(a, shape=5) | np.ones_like(a, dtype=bool) | np.full_like(a, 3, shape=(2, 7))
np.zeros((2, 3), like=a) | np.ones(4, np.int8, like=a) | np.full((2,), 1.5, like=a)
np.asarray([1, 2], like=a) | np.concatenate([a, a[:1]]) | np.concatenate((b, h), 1)
np.concatenate([a, b], axis=None) | np.stack([b, b], axis=-1) | np.stack([b, h])
np.concatenate([b, b], dtype=np.float64) | np.where(m, a, 0.0) | np.where(a > 0, a, d)
np.where(m, 1, i) | np.clip(a, 0, 1) | np.clip(i, None, 2.5) | np.take(a, ids, axis=1)
np.take(a, ids) | np.take(b, 3, axis=-1) | np.take_along_axis(a, i[..., :2] * 0, axis=-1)
np.take_along_axis(a, i[:1, :1, :] * 0, axis=1) | np.triu(a, 1) | np.tril(b) | np.triu(d)
np.einsum("abc,bc->a", a, b) | np.einsum("...i->...", a) | np.einsum("...i,...i->...", a, b)
np.einsum("bij,jk->bik", a, k) | np.einsum("ij,ij->", b, h)
np.einsum("i,i->", d, d, dtype=np.float64) | np.einsum("...ij->...ji", a)
np.einsum("ii->i", b[:, :6]) | np.shape(a) | np.ndim(a) | np.size(a) | np.size(a, 1)
np.result_type(h, 2.0) | np.result_type(h, d) | len(a) | a.size | a.ndim | a.nbytes | a.itemsize
a[:, 1].strides | a.T.flags.c_contiguous | [x.shape for x in b] | np.add(b, b, out=b.copy())
np.multiply(d, 2, out=b.copy(), casting="same_kind")
np.matmul(b, k, out=np.empty_like(b, shape=(6, 5)))
""".strip().replace("\n", " | ").split(" | ")

ERRORS = """
a + k | a @ b | d @ b | np.float32(1) @ a | np.sum(a, axis=3) | np.sum(a, axis=(0, 0)) | z.max()
z.max(axis=0) | a.reshape(5, 5) | a.reshape(-1, -1) | a.transpose(0, 1) | a[4] | a[0, 0, 0, 0]
np.expand_dims(a, 9) | np.concatenate([a, b]) | np.concatenate([b, k]) | np.stack([b, k])
np.split(a, 5) | np.squeeze(a, axis=0) | np.einsum("ij,jk->ik", b, b) | np.einsum("ijk->i", b)
np.einsum("ij->k", b) | np.einsum("b...,...->b", a, b) | np.einsum("...i->i", a)
np.where(m, b, k) | np.broadcast_to(a, (6, 8)) | np.take(a, ids, axis=5) | len(s)
np.take_along_axis(a, ids, axis=0) | np.add(a, b, out=b) | np.add(a, a, out=i) | np.copyto(b, a)
np.copyto(i, a) | np.copyto(i, 1.5) | np.sum(a, axis=0, out=k) | a.__setitem__(0, k)
b.__iadd__(a) | i.__itruediv__(2) | m.__iadd__(1) | np.put_along_axis(a, ids, 0, axis=0)
np.exp(a, dtype=np.int32) | np.bitwise_and(a, 1) | ~a | -m | np.concatenate([a, a], axis=3)
""".strip().replace("\n", " | ").split(" | ")

LAYOUT = {"a": ((4, 6, 8), F), "b": ((6, 8), F), "d": ((8,), D), "h": ((6, 8), H),
          "i": ((4, 6, 8), I), "m": ((4, 6, 8), B), "s": ((), F), "k": ((8, 5), F),
          "z": ((0, 3), F), "ids": ((2, 3), np.dtype("i8"))}


def names(make):
    return {"np": np, **{name: make(*what) for name, what in LAYOUT.items()}}


def describe(x):
    """A 0-d array and NumPy's scalars look the same; so do the shapes and dtypes of the rest."""
    return (x.shape, x.dtype) if isinstance(x, np.ndarray | np.generic | ShapeArray) else x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_numpys_shape_and_dtype(expression):
    expected = eval(expression, names(np.zeros))
    got = eval(expression, names(ShapeArray))
    assert describe(got) == describe(expected)
    assert not isinstance(got, np.ndarray)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("expression", ERRORS)
def test_what_numpy_refuses_is_refused(expression):
    with pytest.raises((ValueError, TypeError, IndexError)):
        eval(expression, names(np.zeros))
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        eval(expression, names(ShapeArray))
    assert "\n" not in str(caught.value).strip()


def test_host_arrays_mix_in_from_either_side():
    x, host = ShapeArray((2, 3), F), np.ones((4, 1, 3), np.float32)
    for y in (x + host, host + x, np.where(host > 0, x, host), host * x):
        assert isinstance(y, ShapeArray) and y.shape == (4, 2, 3) and y.dtype == F
    assert np.take(x, np.array([0, 1, 1]), axis=0).shape == (3, 3)
    assert np.take(x, ShapeArray((5, 1), I), axis=1).shape == (2, 5, 1)
    assert np.concatenate([np.ones((1, 3)), x]).dtype == np.float64


@pytest.mark.parametrize("use", [
    np.asarray, np.array, float, int, bool, complex, range, lambda x: x.tolist(),
    lambda x: x.item(), lambda x: [1, 2][x], lambda x: 1 if x > 0 else 2, lambda x: x in [1.0],
    lambda x: np.zeros(3).__setitem__(..., x), lambda x: np.float32(x)])
def test_numbers_are_refused_with_a_sentence(use):
    with pytest.raises(TypeError, match=r"ShapeArray\(\(\), \w+\) has no numbers: keep values out"):
        use(ShapeArray((), F))


def test_writing_into_an_array_with_numbers_is_refused():
    x, host = ShapeArray((3,), F), np.zeros(3, np.float32)
    with pytest.raises(TypeError, match="without numbers cannot be put into out="):
        host += x
    with pytest.raises(TypeError, match="no numbers to put into the ndarray"):
        np.copyto(host, x)
    with pytest.raises(TypeError, match="has no numbers"):
        host[...] = x
    with pytest.raises(TypeError, match="no numbers to put into the ndarray"):
        np.put_along_axis(host, ShapeArray((3,), I), 0, axis=0)


def test_an_index_for_each_axis_picks_elements():
    x, numbers = ShapeArray((3, 4), F), np.zeros((3, 4), F)
    for ids in ShapeArray(3, I), np.array([2, 0, 3]):
        at = np.arange(3, like=ids), ids
        assert x[at].shape == numbers[np.arange(3), [2, 0, 3]].shape and x[at].dtype == F
        x[at] -= 1.0
        with pytest.raises(ValueError, match="do not fit into shape"):
            x[at] = np.zeros(2, F)
    with pytest.raises(TypeError, match="np.take or np.take_along_axis"):
        x[np.arange(3) > 0, np.arange(3) > 0]


def test_fancy_indexing_and_unknown_functions_name_the_way_out():
    x = ShapeArray((3, 4), F)
    for index in (x > 0, [0, 1], (slice(None), np.array([True] * 4)), True, "a"):
        with pytest.raises(TypeError, match=r"np.where for masks, np.take"):
            x[index]
        with pytest.raises(TypeError, match=r"np.where for masks"):
            x[index] = 0
    with pytest.raises(TypeError, match="numpy.linalg.svd"):
        np.linalg.svd(x)
    with pytest.raises(TypeError, match="numpy.sort"):
        np.sort(x)
    with pytest.raises(TypeError, match="add"):
        np.add.at(x, [0], 1)
    with pytest.raises(TypeError, match="np.where\\(condition\\) needs numbers"):
        np.where(x > 0)


def test_the_messages_name_the_shapes():
    x, y = ShapeArray((2, 3, 4), F), ShapeArray((5, 6), F)
    with pytest.raises(ValueError, match=r"\(2, 3, 4\) @ \(5, 6\): the inner sizes 4 and 5 differ"):
        x @ y
    with pytest.raises(ValueError, match=r"result has shape \(5, 6\), but out= has \(6, 5\)"):
        np.matmul(ShapeArray((5, 5), F), y, out=ShapeArray((6, 5), F))
    with pytest.raises(ValueError, match=r"shape \(5, 6\) do not fit into shape \(3, 4\)"):
        x[0] = y
    with pytest.raises(ValueError, match="sizes are not negative"):
        ShapeArray((2, -1), F)


def test_assignment_and_in_place_operations_keep_the_array():
    x = ShapeArray((3, 4), F)
    same = x
    x += 1
    x *= ShapeArray((4,), F)
    x -= x[:1]
    x[...] = 0
    x[1] = np.arange(4)
    x[:, 0] = x[:, 1]
    x.fill(2)
    np.copyto(x, 1.5)
    np.put_along_axis(x, ShapeArray((3, 1), I), 0.0, axis=1)
    assert x is same


def test_views_hold_the_owner_and_copies_do_not():
    x = ShapeArray((4, 6), F)
    for view in (x.T, x[1:], x.T[2:4].swapaxes(0, 1), x.reshape(-1), x[0, 0], x.ravel(),
                 np.split(x, 2)[0], np.broadcast_to(x, (2, 4, 6)), x[::2].reshape(2, 2, 3)):
        assert view.base is x
    for new in (x.T.reshape(-1), x + 1, x.copy(), x.astype(F), x[:, :3].ravel(), x.T.ravel(),
                np.ascontiguousarray(x.T, like=x), copy.copy(x), copy.deepcopy(x)):
        assert new.base is None and new is not x
    assert x.astype(F, copy=False) is x and np.ascontiguousarray(x, like=x) is x


def test_reshape_copies_exactly_where_numpy_must():
    for order in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)]:
        for shape in [(24,), (4, 6), (2, 2, 6), (2, 12), (4, 3, 2), (1, 24, 1)]:
            host = np.zeros((2, 3, 4)).transpose(order)
            copied = not np.shares_memory(host, host.reshape(shape))
            x = ShapeArray((2, 3, 4), D).transpose(order)
            assert (x.reshape(shape).base is None) == copied, (order, shape)


def test_memory_counts_what_is_alive_and_the_peak():
    memory = Memory()
    x = ShapeArray((10, 10), F, memory)                 # 400 bytes
    assert (memory.live, memory.peak) == (400, 400)
    y = x * 2 + 1                                       # 2 x is freed when y is there
    assert (memory.live, memory.peak) == (800, 1200)
    views = y.T[3], y.reshape(100)
    assert memory.live == 800
    del y
    assert memory.live == 800                           # the views hold their owner
    del views
    assert memory.live == 400
    x += 1
    z = ShapeArray((10, 10), F) @ x                     # any operand with a memory decides
    assert z.memory is memory and memory.live == 800
    duplicate = copy.deepcopy(x)
    assert duplicate.memory is memory and memory.live == 1200
    with pytest.raises(ValueError):
        ShapeArray((-1,), F, memory)
    del x, z, duplicate
    gc.collect()
    assert (memory.live, memory.peak) == (0, 1200)
    assert ShapeArray((3,), F).memory is None


def test_a_175_billion_parameter_array_costs_nothing():
    memory = Memory()
    w = ShapeArray((175_000_000_000,), np.float32, memory)
    y = w[:12288 * 49152].reshape(12288, 49152) * 2.0
    assert memory.live == 700_000_000_000 + y.nbytes and y.shape == (12288, 49152)


def test_zeros_may_be_larger_than_the_machine_can_address():
    memory = Memory()
    like = ShapeArray((), F, memory)
    assert allocate_zeros("parameters", like, (2**70,)).shape == (2**70,)
    assert memory.peak == 4 * 2**70 + like.nbytes
