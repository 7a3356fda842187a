"""The seam between NumPy, CuPy and shape-only arrays."""

import subprocess
import sys
import types

import numpy as np
import pytest

from minipar.backend import (
    add_at,
    arrays,
    asarray_like,
    check_ids,
    is_gpu,
    is_host,
    l2_blocks,
    scatter_add,
    to_host,
)
from minipar.backend.shape_array import ShapeArray


class DeviceArray:
    """Stands for a CuPy array: numbers elsewhere, no way to them but `get`."""

    __cuda_array_interface__ = {}

    def __init__(self, values):
        self._values = np.array(values)
        self.shape, self.ndim = self._values.shape, self._values.ndim
        self.dtype, self.nbytes = self._values.dtype, self._values.nbytes

    def get(self):
        return self._values.copy()

    def __getitem__(self, index):
        return DeviceArray(self._values[index])

    def __array__(self, *args, **kwargs):
        raise TypeError("implicit conversion to a NumPy array is not allowed")


@pytest.fixture
def cupy(monkeypatch):
    """A module with the two functions of CuPy that the seam calls."""
    module = types.ModuleType("cupy")
    module.asarray = DeviceArray
    module.add = types.SimpleNamespace(
        at=lambda total, index, values: np.add.at(total._values, index, values._values))
    monkeypatch.setitem(sys.modules, "cupy", module)


def test_who_owns_the_numbers():
    for host in (np.ones(3), np.float32(1), 2, 2.5, True):
        assert is_host(host) and not is_gpu(host)
    assert is_gpu(DeviceArray([1])) and not is_host(DeviceArray([1]))
    assert not is_host(ShapeArray((3,), np.float32)) and not is_gpu(ShapeArray((3,), np.float32))


def test_like_moves_host_values_to_where_an_array_lives(cupy):
    values = np.arange(6).reshape(2, 3)
    assert asarray_like(values, np.ones(1)) is values
    there = asarray_like(values, DeviceArray([1.0]))
    assert isinstance(there, DeviceArray) and there.dtype == values.dtype
    np.testing.assert_array_equal(there.get(), values)
    shape = asarray_like(values > 2, ShapeArray((), np.float32))
    assert isinstance(shape, ShapeArray) and (shape.shape, shape.dtype) == ((2, 3), bool)


def test_to_host_copies_only_what_lives_elsewhere():
    x = np.ones(3)
    assert to_host(x) is x
    np.testing.assert_array_equal(to_host(DeviceArray([1, 2])), [1, 2])
    with pytest.raises(TypeError, match="has no numbers"):
        to_host(ShapeArray((2,), np.float32))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 8, 9, 64, 65, 1000])
@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("block_bytes", [8, 64, 1 << 18])
def test_blocks_cover_every_row_once_and_in_order(num_rows, width, block_bytes, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", block_bytes)
    x = np.arange(num_rows * width, dtype=np.float64).reshape(num_rows, width)
    y = -np.arange(num_rows)
    pieces = list(l2_blocks(x, y))
    assert sum(len(a) for a, _ in pieces) == num_rows
    start = 0
    for a, b in pieces:
        stop = start + len(a)
        assert len(a) == len(b) > 0
        np.testing.assert_array_equal(a, x[start:stop])
        np.testing.assert_array_equal(b, y[start:stop])
        assert np.shares_memory(a, x)                       # written to in place
        assert len(a) == 1 or a.nbytes < 2 * block_bytes + 2 * width * 8
        start = stop


def test_what_is_not_on_the_host_is_one_block(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 8)
    for x in (ShapeArray((100, 8), np.float64), DeviceArray(np.ones((100, 8)))):
        ((piece,),) = l2_blocks(x)
        assert piece.shape == (100, 8)


def test_scatter_add_adds_what_is_named_twice(cupy):
    rows, ids = np.random.default_rng(0).standard_normal((6, 3)), np.array([4, 0, 4, 2, 0, 4])
    expected = np.array([[sum(rows[i, j] for i in range(6) if ids[i] == r) for j in range(3)]
                         for r in range(5)])
    np.testing.assert_allclose(scatter_add(rows, ids, (5, 3)), expected, atol=1e-15)
    assert scatter_add(rows.astype(np.float32), ids, (5, 3)).dtype == np.float32
    assert not scatter_add(rows[:0], ids[:0], (5, 3)).any()
    shape = scatter_add(ShapeArray((6, 3), np.float32), ShapeArray((6,), np.int64), (5, 3))
    assert (shape.shape, shape.dtype) == ((5, 3), np.float32)


def test_add_at(cupy):
    total, values = np.zeros((2, 3)), np.arange(4.0)
    index = ([0, 1, 0, 1], [2, 0, 2, 1])
    add_at(total, index, values)
    assert total.tolist() == [[0, 0, 2], [1, 3, 0]]
    there = DeviceArray(np.zeros((2, 3)))
    add_at(there, index, DeviceArray(values))
    np.testing.assert_array_equal(there.get(), total)
    add_at(ShapeArray((2, 3), np.float32), index, ShapeArray((4,), np.float32))


def test_ids_are_checked_where_they_can_be_looked_at():
    check_ids(np.array([[0, 4]]), 5, "ids")
    check_ids(np.array([], dtype=int), 0, "ids")
    for wrong in ([0, 5], [-1, 2]):
        with pytest.raises(ValueError, match=rf"tokens {min(wrong)} … {max(wrong)} .* 0 … 4"):
            check_ids(np.array(wrong), 5, "tokens")
    check_ids(ShapeArray((3,), np.int64), 5, "ids")


FAULTS = """
import resource
import numpy as np
from minipar.backend.malloc import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
known = keep_freed_memory()
faults()
print(known, first, faults())
"""


def test_freed_memory_is_kept_where_the_c_library_can():
    """In a process of its own: it is a setting of the whole process."""
    printed = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True,
                             check=True, timeout=60).stdout
    known, before, after = printed.split()
    assert known in ("True", "False")
    if known == "True":                     # 20 arrays of 8 MiB: 2048 pages each, if not huge
        assert int(after) <= int(before) // 5
