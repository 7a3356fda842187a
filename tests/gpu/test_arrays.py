"""CuPy's arrays through every operation, the seam to NumPy, and streams of copies."""

from functools import partial
from types import CellType, FunctionType

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.backend import add_at, asarray_like, is_gpu, scatter_add, to_host
from minipar.backend.copy_stream import CudaCopyStream, empty_pinned
from minipar.backend.views import storage, view_from_spec, view_spec
from minipar.memory.offload.activations import OffloadActivations
from tests.autograd.test_gradcheck import CASES


def moved(value, move):
    """`value` with its host arrays on the device: also those that a function was made with."""
    if isinstance(value, np.ndarray):
        return move(value)
    if isinstance(value, Tensor):
        return Tensor(move(value.data), value.requires_grad)
    if isinstance(value, tuple | list):
        return type(value)(moved(part, move) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, move) for key, part in value.items()}
    if isinstance(value, partial):
        return partial(value.func, *moved(value.args, move), **moved(value.keywords, move))
    if isinstance(value, FunctionType) and value.__module__ == CASES[0][1].__module__:
        cells = tuple(CellType(moved(cell.cell_contents, move)) for cell in value.__closure__ or ())
        copy = FunctionType(value.__code__, value.__globals__, value.__name__,
                            moved(value.__defaults__, move), cells)
        copy.__kwdefaults__ = moved(value.__kwdefaults__, move)
        return copy
    return value


@pytest.mark.parametrize("number", range(len(CASES)),
                         ids=[f"{op}-{i}" for i, (op, *_) in enumerate(CASES)])
def test_an_operation_and_its_gradients_are_the_host_s(number, on_device):
    _, function, inputs, _ = CASES[number]
    results = []
    for move in (np.array, on_device):
        ours = moved(list(inputs), move)
        y = moved(function, move)(*ours)
        y.backward(move(np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)))
        arrays = [y.data, *(x.grad for x in ours)]
        assert all(is_gpu(array) == (move is on_device) for array in arrays)
        results.append([to_host(array) for array in arrays])
    for device, host in zip(results[1], results[0], strict=True):
        assert device.dtype == host.dtype
        np.testing.assert_allclose(device, host, rtol=1e-10, atol=1e-12)


def test_the_seam(cupy):
    x = cupy.arange(12.0).reshape(3, 4)
    assert is_gpu(asarray_like([1, 2], x)) and asarray_like([1, 2], x).dtype == np.int64
    rows = scatter_add(cupy.ones((4, 2)), cupy.asarray([0, 2, 2, 0]), (3, 2))
    assert rows.get().tolist() == [[2, 2], [0, 0], [2, 2]]
    add_at(x, (cupy.asarray([1, 1]), slice(None)), cupy.ones((2, 4)))
    assert x.get()[1].tolist() == [6, 7, 8, 9]
    view = x[1:, ::2].T
    assert storage(view) is storage(x)
    again = view_from_spec(storage(x), view_spec(view, storage(x)))
    assert again.strides == view.strides
    again += 1
    assert x.get()[1].tolist() == [7, 7, 9, 9]
    assert view_spec(x.copy(), storage(x)) is None


def test_saved_arrays_leave_on_a_stream_and_come_back(cupy):
    out, back = CudaCopyStream(), CudaCopyStream(in_order=True)
    offload = OffloadActivations(empty_pinned, (), out, back, ahead=2, min_bytes=64)
    values = [np.random.default_rng(i).random((800, 600)) for i in range(6)]
    items = [offload._pack(cupy.asarray(v).T[1:300]) for v in values]
    out.stream.synchronize()
    out.release_finished()          # an array that is still alive would not be copied back
    assert not out.held
    for i in reversed(range(6)):
        array = offload._unpack(items[i])
        np.testing.assert_array_equal(array.get(), values[i].T[1:300])
        assert array.strides == values[i].T[1:300].strides
        items[i] = None
    assert (offload.num_out, offload.num_in) == (6, 6)


def test_a_gradient_laid_out_otherwise_has_room(cupy):
    """The gradient of a slice is larger than what arrives, which may be a transposed view."""
    x = Tensor(cupy.arange(24.0).reshape(4, 6), requires_grad=True)
    (x[:2, :3].T * cupy.ones((3, 2))).sum().backward()
    assert x.grad.get().sum() == 6 and x.grad.shape == (4, 6)
