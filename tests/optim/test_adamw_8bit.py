"""8-bit states: their levels, their error, their bytes, and AdamW with them."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import MLP
from minipar.optim import NO_DECAY_FOR_VECTORS, AdamW
from minipar.optim import adamw_8bit as module
from minipar.optim.adamw_8bit import AdamW8bit
from minipar.optim.moment_codes import BLOCK, Moment, levels
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from tests.optim.test_optimizers import Parameters, set_gradients


@pytest.mark.parametrize("signed", [True, False])
def test_levels_are_256_dense_near_zero_and_end_at_1(signed):
    found = levels(signed)
    assert len(found) == len(set(found)) == 256 and found[-1] == 1 and 0 in found
    assert (np.diff(found) > 0).all()
    for power in range(7):
        inside = (found >= 10.0**(power - 7)) & (found < 10.0**(power - 6))
        assert inside.sum() == (2**power if signed else 2**(power + 1)), power
    without = found[(found != 0) & (found != 1)]
    assert signed == np.array_equal(-without[::-1], without) == (found[0] < 0)


def nearest(values, signed):
    """Each value's nearest level times its block's scale, by looking at all levels.

    Of a second moment that is not 0: nearest among those that are not.
    """
    found = np.empty_like(values)
    for start in range(0, values.size, BLOCK):
        here = values[start:start + BLOCK]
        scale = np.float64(np.float32(np.abs(here).max()))
        choice = np.abs(here[:, None] / (scale or 1) - levels(signed)).argmin(1)
        if not signed:
            choice[(choice == 0) & (here > 0)] = 1
        found[start:start + BLOCK] = levels(signed)[choice] * scale
    return found


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("signed", [True, False])
def test_a_code_is_that_of_the_nearest_level(size, signed):
    values = np.random.default_rng(size).standard_normal(size)**3
    values = values if signed else np.abs(values)
    moment = Moment(np.empty(size), signed)
    assert not moment.decode(0, size).any()
    moment.encode(0, values)
    np.testing.assert_allclose(moment.decode(0, size), nearest(values, signed), rtol=1e-12)
    moment.encode(0, np.zeros(size))
    assert not moment.decode(0, size).any()


def test_a_small_second_moment_does_not_vanish():
    """A gradient that vanishes beside a large one: m / (√0 + ε) would be a step of 1e4 · lr."""
    model = Parameters((2,)).initialize(0, np.float64)
    before = model.p0.data.copy()
    optimizer = AdamW8bit(model.slabs, 0.01, weight_decay=0)
    for gradient in ([1.0, 1e-4], [1.0, 0.0], [1.0, 0.0]):
        optimizer.zero_grad()
        model.p0.slot.accumulate(np.array(gradient))
        optimizer.step()
    assert np.abs(model.p0.data - before).max() < 0.05


def test_what_states_cost_in_the_ledger():
    n = 10 * BLOCK + 3
    model = Parameters((n,)).initialize()
    with Ledger().recording() as full:
        AdamW(model.slabs)
    with Ledger().recording() as codes:
        optimizer = AdamW8bit(model.slabs)
    assert full.peak_of["optimizer states"] == 8 * n
    assert codes.peak_of["optimizer states"] == 2 * n + 8 * 11
    assert {moment.codes.dtype for pair in optimizer.moments for moment in pair} == {
        np.dtype(np.uint8)}


@pytest.mark.parametrize("chunk", [BLOCK, 4 * BLOCK])
def test_a_step_is_adamw_s_between_decoding_and_encoding(chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    shapes = ((90, 60), (50,), (3000,))
    model = Parameters(*shapes).initialize(0, np.float64)
    optimizer = AdamW8bit(model.slabs, 0.01, weight_decay=0.3, groups=[NO_DECAY_FOR_VECTORS])
    p, m, v = model.slabs[0].data.copy(), *np.zeros((2, model.num_parameters()))
    decay = np.repeat([0.3, 0.0], [5400, 3050])
    for t in range(1, 6):
        set_gradients(model, t)
        g = model.slabs[0].complete_grad().copy()
        m, v = 0.9 * nearest(m, True) + 0.1 * g, 0.999 * nearest(v, False) + 0.001 * g**2
        p = p * (1 - 0.01 * decay) - 0.01 * (m / (1 - 0.9**t)) / (
            np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        optimizer.step()
        np.testing.assert_allclose(model.slabs[0].data, p, rtol=1e-9, atol=1e-12)


def test_a_stopped_run_goes_on_exactly():
    def steps(model, optimizer, numbers):
        for t in numbers:
            set_gradients(model, t)
            optimizer.step()
    one, two = (Parameters((70, 60), (40,)).initialize(0) for _ in range(2))
    through, first = AdamW8bit(one.slabs, 0.1), AdamW8bit(two.slabs, 0.1)
    steps(one, through, range(6))
    steps(two, first, range(3))
    resumed = AdamW8bit(two.slabs, 0.1)
    resumed.load_state_dict(first.state_dict(), first.num_steps)
    for ours, theirs in zip(first.moments[0], resumed.moments[0]):
        np.testing.assert_array_equal(ours.codes, theirs.codes)
        np.testing.assert_array_equal(ours.scales, theirs.scales)
    steps(two, resumed, range(3, 6))
    np.testing.assert_array_equal(one.slabs[0].data, two.slabs[0].data)


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp"])
def test_on_every_layout_it_trains_nearly_as_adamw(name):
    """Blocks of pieces have other scales than those of a slab, so layouts differ by rounding."""
    def trained(comm, kind, name):
        strategy = make_strategy(name, MLP([8, 40, 5]).initialize(0), comm)
        optimizer = kind(strategy.slabs, 0.01)
        for step in range(30):
            draw = np.random.default_rng(step)
            x = draw.standard_normal((12, 8)).astype(np.float32)
            mine = np.array(strategy.rows(12))
            optimizer.zero_grad()
            loss = strategy.forward_backward([Microbatch(x[mine], x[mine, :5].argmax(1), mine)])
            strategy.step(optimizer)
        return loss
    right = Cluster(1).run(lambda comm: trained(comm, AdamW, "ddp"))[0][0]
    start = Cluster(1).run(lambda comm: trained(comm, lambda slabs, lr: AdamW(slabs, 0.0), "ddp"))
    for loss in Cluster(3).run(lambda comm: trained(comm, AdamW8bit, name))[0]:
        assert abs(loss - right) < 0.03 < start[0][0] - right
