"""Exercises of offloading: should_offload, prefetch_candidates and offload_unpack."""

import numpy as np

from minipar import autograd as ag
from minipar.autograd import Tensor, backward
from minipar.backend.copy_stream import CopyStream
from minipar.backend.mapped_file import MappedFile
from minipar.memory.offload.activations import OffloadActivations, no_offload
from minipar.memory.remat.recompute import checkpoint
from minipar.nn import GPT, GPTConfig

CONFIG = GPTConfig(23, context=16, num_layers=3, num_heads=2, width=16)


def make(min_bytes=1000, ahead=2, stays=(), **lanes):
    return OffloadActivations(MappedFile().empty, stays, ahead=ahead, min_bytes=min_bytes, **lanes)


def test_size_decides_and_that_of_the_whole_storage():
    offload, large = make(), np.ones((20, 10))
    assert all(map(offload.should_offload, (large, large[0], large.T[2:])))
    assert not offload.should_offload(np.ones(100)) and offload.should_offload(np.ones(125))
    assert not make(min_bytes=0).should_offload(np.float64(3))
    assert not offload.should_offload("a note")
    assert offload.should_offload(np.zeros(1000, bool))
    assert not offload.should_offload(np.zeros(999, bool))


def test_parameters_stay_with_all_their_views():
    weight = Tensor(np.ones((20, 10)), requires_grad=True)
    part = Tensor(weight.data[3:], requires_grad=True)
    for stays in ([weight], [part]):
        offload = make(stays=stays)
        assert not offload.should_offload(weight.data)
        assert not offload.should_offload(weight.data.T[1:])
        assert offload.should_offload(weight.data.copy())


def test_nothing_leaves_where_it_is_wanted_at_once():
    offload, large = make(min_bytes=1), np.ones((20, 10))
    with no_offload():
        assert not offload.should_offload(large)
    x = Tensor(large, requires_grad=True)
    with offload.recording():
        y = checkpoint(lambda x: ag.exp(ag.exp(x * 0.1)), x)
    assert offload.num_out == 1                     # the segment's input
    backward(ag.sum(y))
    assert offload.num_out == 1                     # and nothing of what was computed again


def pack(offload, count):
    return [offload._pack(np.full(200, float(i))) for i in range(count)]


def test_the_next_ones_are_in_reverse_order_of_saving():
    offload = make()
    items = pack(offload, 6)
    assert [moved.number for moved in offload.prefetch_candidates(5)] == [4, 3, 2, 1, 0]
    assert [moved.number for moved in offload.prefetch_candidates(2)] == [1, 0]
    assert offload.prefetch_candidates(0) == [] and len(items) == 6


def test_what_is_gone_or_here_is_not_among_them():
    offload = make(ahead=0)
    items = pack(offload, 6)
    del items[3]
    offload._unpack(items[1])
    assert [moved.number for moved in offload.prefetch_candidates(5)] == [4, 2, 0]


def test_it_looks_back_only_so_far():
    offload = make()
    items = pack(offload, 70)
    assert [moved.number for moved in offload.prefetch_candidates(69)] == list(range(68, 4, -1))
    assert len(items) == 70


class Tape(CopyStream):
    """A lane that writes down what was asked of it."""

    def __init__(self, name, tape):
        self.name, self.tape = name, tape

    def copy(self, source, dest):
        super().copy(source, dest)
        self.tape.append((self.name, int(source[0])))
        return int(source[0])

    def wait(self, copy):
        self.tape.append(("wait", copy))


def came_back(ahead, count):
    """The requests to the lane that copies in, while arrays are asked for in reverse order."""
    tape = []
    offload = make(ahead=ahead, back=Tape("in", tape))
    items = pack(offload, count)
    for i in reversed(range(count)):
        np.testing.assert_array_equal(offload._unpack(items[i]), np.full(200, float(i)))
        np.testing.assert_array_equal(offload._unpack(items[i]), np.full(200, float(i)))
        del items[i]
    return tape, offload


def test_the_next_array_is_on_its_way_before_this_one_is_waited_for():
    tape, offload = came_back(1, 4)
    assert tape == [("in", 3), ("in", 2), ("wait", 3), ("in", 1), ("wait", 2), ("in", 0),
                    ("wait", 1), ("wait", 0)]
    assert offload.num_late == 1 and offload.num_in == 4


def test_so_many_are_on_their_way():
    tape, offload = came_back(3, 7)
    assert tape[:5] == [("in", 6), ("in", 5), ("in", 4), ("in", 3), ("wait", 6)]
    under_way, most = 0, 0
    for what, _ in tape:
        under_way += 1 if what == "in" else -1
        most = max(most, under_way)
    assert most == 4 and under_way == 0 and offload.num_late == 1
    assert came_back(0, 3)[0] == [("in", 2), ("wait", 2), ("in", 1), ("wait", 1), ("in", 0),
                                  ("wait", 0)]


def test_places_outside_are_given_back():
    offload = make(ahead=1)
    items = pack(offload, 3)
    offload._unpack(items[2])
    assert items[2].moved.outside is None and items[0].moved.outside is not None


def test_gradients_are_the_same_bit_for_bit():
    def gradients(offload):
        model = GPT(CONFIG).initialize(3, np.float64)
        ids, targets = np.random.default_rng(0).integers(0, 23, (2, 3, 16))
        offload.stays = {id(slab.data): slab.data for slab in model.slabs}
        with offload.recording():
            backward(model.loss(ids, targets))
        return model.slabs[0].grad
    plain, moved = make(min_bytes=1 << 40), make(min_bytes=1)
    np.testing.assert_array_equal(gradients(moved), gradients(plain))
    assert plain.num_out == 0 < moved.num_in and moved.num_late <= moved.num_in / 4
