"""Offloading: bit for bit the same numbers; what leaves, when it comes back, what that takes."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor, backward
from minipar.backend.copy_stream import CopyStream
from minipar.backend.mapped_file import MappedFile
from minipar.memory.ledger import Ledger, OutOfMemory
from minipar.memory.offload.activations import OffloadActivations, no_offload
from minipar.memory.remat.plans import rematerialize, sqrt_segments, uniform
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step

CONFIG = GPTConfig(23, context=16, num_layers=4, num_heads=2, width=16, dropout=0.1)
PLANS = {"none": lambda model: model, "every 2": partial(rematerialize, policy=partial(uniform, 2)),
         "square root": partial(rematerialize, policy=sqrt_segments),
         "selective": rematerialize_attention}


def step(offloads, dtype=np.float64, change=PLANS["none"], defer=False, ahead=2, min_bytes=1):
    """Loss, gradients, ledger and offload of one step."""
    model = change(GPT(CONFIG).initialize(3, dtype))
    ids, targets = np.random.default_rng(0).integers(0, 23, (2, 3, 16))
    ledger = Ledger(model.parameters())
    offload = OffloadActivations(MappedFile().empty, model.parameters(), ahead=ahead,
                                 min_bytes=min_bytes)
    with ledger.recording(), offload.recording() if offloads else nullcontext(), \
            training_step(1, 2, range(3)):
        loss = model.loss(ids, targets)
        rest = backward(loss, defer_weights=defer)
        if defer:
            rest()
        del rest
    del ids, targets                        # saved and still the caller's: they count until now
    assert ledger.live == ledger.live_of["offloaded"] == 0
    return float(loss.data), [slab.grad.copy() for slab in model.slabs], ledger, offload


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_bitwise_the_same_with_less_memory(plan, defer, dtype):
    plain = step(False, dtype, PLANS[plan], defer)
    moved = step(True, dtype, PLANS[plan], defer)
    assert moved[0] == plain[0]
    for ours, theirs in zip(moved[1], plain[1]):
        np.testing.assert_array_equal(ours, theirs)
    if plan in ("none", "selective"):
        assert moved[2].peak_of["activations"] < plain[2].peak_of["activations"] / (1 + 2 * (
            not defer))
        assert moved[2].peak_of["offloaded"] > 0.9 * plain[2].peak_of["activations"]
    assert moved[3].bytes_out == moved[2].peak_of["offloaded"] or plan != "none"


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_copies_are_counted_and_begin_ahead_of_their_use(ahead):
    *_, offload = step(True, ahead=ahead)
    assert offload.num_in == offload.num_out and offload.bytes_in == offload.bytes_out
    if ahead == 0:
        assert offload.num_late == offload.num_in
    else:
        assert offload.num_late <= offload.num_in / (2 if ahead == 1 else 4)


def saved_by(function, *arrays, **options):
    """Save an array with OffloadActivations: the offload, and the result of packing."""
    offload = OffloadActivations(MappedFile().empty, **options)
    inputs = [Tensor(array, requires_grad=True) for array in arrays]
    with offload.recording():
        return offload, function(*inputs)


def test_which_arrays_leave():
    large, small = np.ones((64, 64)), np.ones((4, 4))
    assert saved_by(ag.exp, large, min_bytes=1000)[0].num_out == 1
    assert saved_by(ag.exp, small, min_bytes=1000)[0].num_out == 0
    weight = Tensor(large, requires_grad=True)
    offload, _ = saved_by(lambda x: ag.linear(x, weight.T), large.copy(), stays=[weight],
                          min_bytes=1000)
    assert offload.bytes_out == large.nbytes                        # x, and no view of the weight
    offload, _ = saved_by(lambda x: ag.exp(x) * ag.exp(x.T).T, large)
    assert offload.num_out == 0                                     # by default these are small
    with no_offload():
        assert saved_by(ag.exp, large, min_bytes=1)[0].num_out == 0


def test_views_of_one_storage_leave_once_and_keep_their_strides():
    x = Tensor(np.arange(24.0).reshape(4, 6), requires_grad=True)
    offload, seen = OffloadActivations(MappedFile().empty, min_bytes=1), []

    class Look(ag.Function):
        def forward(ctx, x):
            ctx.save(x, x.T[1:], x[::2, 1:], np.swapaxes(x, 0, 1)[..., None])
            return x * 2

        def backward(ctx, g):
            seen.extend(saved() for saved in ctx.saved)
            return [g]
    with offload.recording():
        y = Look.apply(x * 1.0)
    assert offload.num_out == 1
    y.sum().backward()
    a = x.data
    for found, view in zip(seen, (a, a.T[1:], a[::2, 1:], np.swapaxes(a, 0, 1)[..., None])):
        np.testing.assert_array_equal(found, view)
        assert found.strides == view.strides
    assert all(found.base is not None for found in seen[1:]) and offload.num_in == 1


def test_memory_in_another_order_and_arrays_that_are_still_here():
    x = Tensor(np.asfortranarray(np.random.default_rng(0).random((3, 4, 5)).transpose(1, 2, 0)),
               requires_grad=True)
    offload = OffloadActivations(MappedFile().empty, min_bytes=1)
    with offload.recording():
        y = ag.exp(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, np.exp(x.data))
    assert (offload.num_out, offload.num_in) == (1, 0)          # y was never freed


def test_the_next_ones_are_those_saved_before():
    offload = OffloadActivations(MappedFile().empty, ahead=2, min_bytes=1)
    items = [offload._pack(np.full(9, float(i))) for i in range(8)]
    assert [m.number for m in offload.prefetch_candidates(7)] == [6, 5, 4, 3, 2, 1, 0]
    del items[5]
    assert [m.number for m in offload.prefetch_candidates(6)] == [4, 3, 2, 1, 0]
    for i in (6, 5, 4):                                         # numbers 7, 6, 4
        assert offload._unpack(items[i])[0] == items[i].moved.number
    assert [m.number for m in offload.prefetch_candidates(4)] == [1, 0]   # 3 and 2 are on their way
    assert offload.prefetch_candidates(0) == [] and offload.num_late == 1


class Tape(CopyStream):
    """A lane that writes down what was asked of it."""

    def __init__(self, name, tape):
        self.name, self.tape = name, tape

    def copy(self, source, dest):
        super().copy(source, dest)
        self.tape.append((self.name, float(source.flat[0])))
        return float(source.flat[0])

    def wait(self, copy):
        self.tape.append(("wait", copy))


def test_double_buffering():
    """While one array is used the next one comes: its copy begins before the first is waited for.
    """
    tape = []
    offload = OffloadActivations(MappedFile().empty, (), Tape("out", tape), Tape("in", tape), 1, 1)
    items = [offload._pack(np.full(9, float(i))) for i in range(4)]
    assert tape == [("out", 0.0), ("out", 1.0), ("wait", 0.0), ("out", 2.0), ("wait", 1.0),
                    ("out", 3.0), ("wait", 2.0)]
    tape.clear()
    for item in reversed(items):
        offload._unpack(item)
    assert tape == [("in", 3.0), ("in", 2.0), ("wait", 3.0), ("in", 1.0), ("wait", 2.0),
                    ("in", 0.0), ("wait", 1.0), ("wait", 0.0)]


def test_a_limit_ends_with_a_sentence():
    model = GPT(CONFIG).initialize(0)
    ids = np.zeros((3, 16), np.int64)
    ledger = Ledger(model.parameters(), limit=50_000)
    with ledger.recording(), pytest.raises(OutOfMemory) as caught:
        model.loss(ids, ids)
    assert "\n" not in (text := str(caught.value)) and "--offload activations" in text
    assert "of activations were asked for where 0.0 MB of 0.1 MB are in use (activations 0.0 MB)" \
        in text
    del caught
    assert ledger.peak <= 50_000
    ledger = Ledger(model.parameters(), limit=50_000)
    offload = OffloadActivations(MappedFile().empty, model.parameters(), ahead=1, min_bytes=1)
    with ledger.recording(), offload.recording():
        backward(model.loss(ids, ids))
    assert 0 < ledger.peak <= 50_000 < ledger.peak_of["offloaded"]
    with pytest.raises(OutOfMemory, match=r"8\.0 MB of parameters .* \(Python .*--strategy fsdp"):
        Ledger(limit=7e6).add("parameters", np.zeros(1_000_000))
