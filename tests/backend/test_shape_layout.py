"""Layouts of views are NumPy's, for any chain of views; no array is too large for them."""

import random

import numpy as np
import pytest

from minipar.backend import shape_layout
from minipar.backend.shape_array import Memory, ShapeArray

HUGE = (1 << 40, 1 << 40)               # 2^82 bytes of float32: more than 64 bits can address


def some_view(draw: random.Random, ndim: int):
    """A function that makes a view of an array with a given number of axes."""
    axis, other = draw.randrange(-ndim, ndim), draw.randrange(ndim)
    start, step = draw.randrange(-2, 3), draw.choice([-3, -2, -1, 1, 2, 3])
    order, length = draw.sample(range(ndim), ndim), draw.randrange(1, 4)
    at = [slice(None)] * other
    return draw.choice([
        lambda x: x[(*at, slice(start, None, step))], lambda x: x[(*at, None, ..., slice(1, None))],
        lambda x: x[(*at, 0)] if ndim > 2 and x.shape[other] else x, lambda x: x[..., ::step],
        lambda x: x.transpose(order), lambda x: x.transpose(*order), lambda x: x.T,
        lambda x: x.swapaxes(axis, other), lambda x: np.moveaxis(x, axis, other),
        lambda x: np.expand_dims(x, axis), lambda x: np.flip(x, axis), lambda x: np.flip(x),
        lambda x: np.broadcast_to(x, (length, *x.shape)), lambda x: np.squeeze(x),
        lambda x: np.array_split(x, length, axis)[-1], lambda x: np.split(x, [1, 3], axis)[1],
        lambda x: x.reshape(-1) if x.ndim > 2 else x.reshape(1, *x.shape),
        lambda x: x.reshape(x.shape[0], -1) if x.size else x,
        lambda x: x.reshape(*x.shape[:-1], 2, -1) if x.size and x.shape[-1] % 2 == 0 else x])


def compare(real: np.ndarray, x: ShapeArray) -> None:
    assert x.shape == real.shape
    if real.size:                       # strides of axes of length 1 do not matter
        assert [s for n, s in zip(x.shape, x.strides) if n > 1] == [
            s for n, s in zip(real.shape, real.strides) if n > 1]
    assert x.flags == (real.flags.c_contiguous, real.flags.f_contiguous)


@pytest.mark.parametrize("seed", range(40))
def test_chains_of_views_lie_as_numpys(seed):
    draw = random.Random(seed)
    for _ in range(25):
        shape = draw.choices([0, 1, 2, 3, 4, 6], [1, 2, 8, 3, 8, 2], k=draw.randrange(1, 4))
        real, x = np.zeros(shape, np.float32), ShapeArray(shape, np.float32)
        for _ in range(5):
            if not real.ndim:
                break
            view = some_view(draw, real.ndim)
            before, real = real, view(real)
            owner, x = x if x.base is None else x.base, view(x)
            compare(real, x)
            if real.size:
                assert np.shares_memory(before, real) == (owner is x or owner is x.base)


@pytest.mark.parametrize("shape", [(4, 6), (3, 1, 8), (8,), (2, 0, 4), (5, 7), ()])
def test_bytes_read_as_another_dtype(shape):
    for dtype in ("i1", "f2", "f4", "f8"):
        for new in ("u1", "i2", "i4", "c16"):
            for view in (lambda a: a, lambda a: a[..., ::2] if a.ndim else a, lambda a: a.T):
                real, x = view(np.zeros(shape, dtype)), view(ShapeArray(shape, dtype))
                try:
                    expected = real.view(new)
                except ValueError:
                    with pytest.raises(ValueError, match="cannot be read as elements of"):
                        x.view(new)
                    continue
                compare(expected, x.view(new))


def test_no_array_is_too_large():
    """As 2 GiB are where addresses have 32 bits."""
    memory = Memory()
    x = ShapeArray(HUGE, np.float32, memory)
    n, _ = HUGE
    assert memory.live == x.nbytes == 4 * n * n and x.flags.c_contiguous
    assert x[1:].shape == (n - 1, n) and x.T.strides == (4, 4 * n)
    assert x.reshape(-1).shape == (n * n,) and x.T.reshape(-1).base is None
    assert (x + x).shape == (x @ x).shape == np.where(x > 0, x, 1.0).shape == HUGE
    assert np.broadcast_to(x, (3, *HUGE)).strides == (0, 4 * n, 4)
    assert np.split(x, 2)[1].shape == (n // 2, n) and np.array_split(x, 3, 1)[0].shape[0] == n
    assert np.exp(x[:, None] * x).sum(axis=(0, 2)).shape == (n,)
    assert np.einsum("ij,kj->ik", x, x).shape == HUGE
    assert np.stack([x, x]).reshape(2 * n, n).T.copy().shape == (n, 2 * n)
    assert np.take_along_axis(x, ShapeArray((n, 1), np.int64), 1).shape == (n, 1)


def test_what_numpy_cannot_address_is_not_asked_of_it():
    with pytest.raises(ValueError, match="too big|too large"):
        np.lib.stride_tricks.as_strided(np.zeros((), np.float32), HUGE, (4, 4))
    with pytest.raises(ValueError, match="too large"):
        np.broadcast_shapes(HUGE)
    assert shape_layout.broadcast_shapes(HUGE, (1, 1), (1 << 40,)) == HUGE
    for shapes in [((2, 3), (3, 1)), ((2, 3), (2, 3, 1)), ((0, 1), (1, 5)), ((), (4,))]:
        try:
            expected = np.broadcast_shapes(*shapes)
        except ValueError:
            with pytest.raises(ValueError, match="do not broadcast together"):
                shape_layout.broadcast_shapes(*shapes)
        else:
            assert shape_layout.broadcast_shapes(*shapes) == expected
