"""Arrays in a mapped file; copies on a CUDA stream, against a strict stand-in for CuPy."""

import errno
import gc
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from minipar.backend import allocate_zeros, allocating_with, mapped_file, to_device_of
from minipar.backend.copy_stream import CudaCopyStream, empty_pinned
from minipar.backend.mapped_file import PAGE, DiskFull, MappedFile, is_mapped, page_out
from minipar.backend.views import storage
from minipar.memory.ledger import Ledger
from minipar.memory.offload.activations import OffloadActivations
from minipar.nn import MLP
from minipar.optim import AdamW
from minipar.parallel.flats import Flat, Piece
from tests.support.strict_array import StrictArray, as_cupy


def resident(kind="RssFile"):
    """Bytes of this kind that the process has in memory."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{kind}:")[1].split()[0])


def test_arrays_of_a_file_are_ordinary_arrays(tmp_path):
    file = MappedFile(tmp_path)
    assert not list(tmp_path.iterdir())                     # without a name from the first moment
    arrays = [file.empty(shape, dtype) for shape, dtype in (
        ((3, 5), np.float32), (7, np.float64), ((), np.int64), ((0, 4), np.float32))]
    for i, array in enumerate(arrays):
        array[...] = i
    assert [array.shape for array in arrays] == [(3, 5), (7,), (), (0, 4)]
    assert all(is_mapped(array) and storage(array.ravel()) is array for array in arrays)
    page_out(*arrays, np.ones(3))                           # others stay as they are
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, {1}, {2}, set()]
    assert type(np.empty_like(arrays[0])) is np.ndarray and not is_mapped(np.empty_like(arrays[0]))


def test_places_are_used_again_and_the_file_grows_only_for_more(tmp_path):
    file = MappedFile(tmp_path)
    one, other = file.empty(1 << 18, np.float32), file.empty(1 << 18, np.float32)
    address, size = one.ctypes.data, file.size
    view = one[5:]
    del one
    gc.collect()
    assert file.empty(1 << 18, np.float32).ctypes.data != address       # a view still uses it
    del view
    third = file.empty(1 << 17, np.float64)                 # as many bytes
    assert third.ctypes.data == address
    assert file.size == 2 * size
    assert os.fstat(file.file.fileno()).st_size == file.size
    other[...] = 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux what is resident")
def test_what_was_paged_out_is_not_resident_and_comes_back():
    array = MappedFile().empty(1 << 22, np.float32)         # 16 MiB
    before = resident()
    array[...] = 3
    assert resident() - before > 15e6
    page_out(array[PAGE:2 * PAGE])
    assert resident() - before > 15e6
    page_out(array)
    assert resident() - before < 1e6
    assert array[12345] == 3 and array.sum() == 3 << 22


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    file = MappedFile(tmp_path)
    file.empty(10, np.float32)

    def full(*place):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(mapped_file, "_reserve", full)
    with pytest.raises(DiskFull, match=r"^no room for 4,001,792 bytes more in .*No space left.*"
                                     r"memory\.offload_dir$"):
        file.empty(1_000_000, np.float32)


def test_without_fallocate_the_blocks_are_written(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    file = MappedFile(tmp_path)
    file.empty(1_000_000, np.float32)[...] = 1
    assert os.fstat(file.file.fileno()).st_size == file.size


def test_what_is_made_elsewhere_is_counted_as_offloaded():
    ledger, file = Ledger(), MappedFile()
    with ledger.recording(), allocating_with({"gradients": file.zeros}):
        inside = allocate_zeros("gradients", np.ones(4))
        outside = allocate_zeros("parameters", np.ones(4), (2, 3))
    assert is_mapped(inside) and not is_mapped(outside) and inside.sum() == outside.sum() == 0
    assert ledger.live == ledger.live_of["parameters"] == 48 and ledger.live_of["offloaded"] == 32
    del inside
    assert ledger.live_of["offloaded"] == 0 and ledger.peak_of["offloaded"] == 32


# A device, whose streams do nothing until they are waited for.

class Event:
    def __init__(self, stream):
        self.stream, self.number = stream, stream.num_done + len(stream.queue)

    @property
    def done(self):
        return self.stream.num_done >= self.number

    def synchronize(self):
        while not self.done:
            self.stream.queue.pop(0)()
            self.stream.num_done += 1


class Stream:
    def __init__(self, non_blocking=False):
        self.queue, self.num_done, self.waited = [], 0, 0

    def record(self):
        return Event(self)

    def wait_event(self, event):
        self.waited += 1
        event.synchronize()


@pytest.fixture
def cupy(monkeypatch):
    extra = types.ModuleType("cupyx")
    extra.empty_pinned = lambda shape, dtype: np.full(shape, np.nan, dtype)
    monkeypatch.setitem(sys.modules, "cupyx", extra)
    with as_cupy(monkeypatch) as module:
        module.current = Stream()
        module.cuda.Stream, module.cuda.get_current_stream = Stream, lambda: module.current
        yield module


def test_saved_arrays_leave_a_gpu_on_a_stream_and_come_back_ahead_of_their_use(cupy):
    out, back = CudaCopyStream(), CudaCopyStream(in_order=True)
    offload = OffloadActivations(empty_pinned, (), out, back, ahead=2, min_bytes=64)
    values = [np.random.default_rng(i).random((8, 6)) for i in range(6)]
    items = []
    for i, v in enumerate(values):
        owner = StrictArray(v.copy())
        items.append(offload._pack(owner.transpose((1, 0))[1:3]))
        del owner
        assert len(out.stream.queue) == min(i + 1, 2)       # copies under way, each held
        assert len(out.held) == min(i + 1, 2)
    assert isinstance(offload._pack(small := StrictArray(np.ones(3))), StrictArray) and small.size
    out.held[-1][0].synchronize()
    for i in reversed(range(6)):
        array = offload._unpack(items[i])
        assert isinstance(array, StrictArray) and array.strides == values[i].T[1:3].strides
        np.testing.assert_array_equal(array.get(), values[i].T[1:3])
        assert len(back.stream.queue) == min(2, i)          # the next two are on their way
        items[i] = None
    assert (offload.num_out, offload.num_in, offload.num_late) == (6, 6, 1)
    assert out.stream.waited == back.stream.waited == 6     # each after what was computed before


def test_what_a_stream_copies_is_held_until_it_is_done(cupy):
    lane, source = CudaCopyStream(), StrictArray(np.arange(4.0))
    host = empty_pinned(4, np.float64)
    event = lane.copy(source, host)
    assert lane.held[0][1] is source and np.isnan(host).all()
    lane.release_finished()
    assert lane.held
    lane.wait(event)
    assert not lane.held and host.tolist() == [0, 1, 2, 3]


def test_a_shard_on_the_host_beside_a_gpu_is_optimized_there(cupy):
    """ZeRO-Offload: pieces of gradients come to the host; parameters on a GPU go there and back."""
    data, grad = np.arange(3.0), np.zeros(3)
    alone, slab = types.SimpleNamespace(rank=0, size=1), MLP([1, 2]).initialize().slabs[0]
    shard = Piece(Flat(slab, [], alone, alone), alone, data, grad)
    shard.add(StrictArray(np.array([1.0, -1, 1])))
    shard.add(StrictArray(np.array([1.0, -1, 1])))
    assert grad.tolist() == [2, -2, 2]
    optimizer = AdamW([shard], lr=0.5, weight_decay=0)
    optimizer.num_steps = 1
    optimizer.begin_step()
    p = StrictArray(data.copy())
    optimizer.update_block([], p, StrictArray(grad), *[np.zeros(3) for _ in range(2)])
    optimizer.num_steps = 0
    optimizer.step()
    np.testing.assert_array_equal(p.get(), data)
    np.testing.assert_allclose(data, [-0.5, 1.5, 1.5], rtol=1e-7)
    assert to_device_of(p, p) is p and to_device_of(data, grad) is data
    assert isinstance(to_device_of(data, p), StrictArray)
    assert isinstance(to_device_of(p, data), np.ndarray)
