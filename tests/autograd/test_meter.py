"""The meter counts FLOPs, bytes and calls exactly, and tells a clock."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Meter, Tensor
from minipar.nn import GPT, GPTConfig


def test_the_meter_counts_what_the_formulas_say():
    b, i, o = 3, 4, 5
    x, w, bias = (Tensor(np.ones(shape, np.float32), requires_grad=True)
                  for shape in ((b, i), (i, o), (o,)))
    w.slot.weight_only = bias.slot.weight_only = True
    with Meter().running() as meter:
        ag.linear(x, w, bias).sum().backward()
    assert meter.flops["Linear", "forward"] == 2 * b * i * o + b * o
    assert meter.flops["Linear", "backward"] == 2 * b * i * o
    assert meter.flops["Linear", "weights"] == 2 * b * i * o + b * o
    assert meter.bytes["Linear", "forward"] == 4 * (b * i + i * o + o + b * o)
    assert meter.calls == {("Linear", "forward"): 1, ("Linear", "backward"): 1,
                           ("Linear", "weights"): 2, ("Sum", "forward"): 1, ("Sum", "backward"): 1}
    assert meter.total_flops(names=("Linear",)) == 6 * b * i * o + 2 * b * o
    assert meter.total_flops("weights") == 2 * b * i * o + b * o
    assert meter.total_flops() == sum(meter.flops.values())


def test_the_meter_counts_no_gradient_that_nobody_wants():
    x, w = Tensor(np.ones((3, 4))), Tensor(np.ones((4, 5)), requires_grad=True)
    with Meter().running() as meter:
        ag.linear(x, w).sum().backward()
    assert meter.flops["Linear", "forward"] == 120
    assert meter.total_flops(names=("Linear",)) == 240


def test_the_meter_tells_a_clock_and_ends_with_its_context():
    log, ticks = [], iter(range(100))
    x = Tensor(np.ones(3), requires_grad=True)
    meter = Meter(lambda: next(ticks), lambda *report: log.append(report))
    with meter.running():
        assert ag.current_meter() is meter
        (x * 2.0).sum().backward()
    assert ag.current_meter() is None
    ag.exp(x)
    assert [entry[1:3] for entry in log] == [
        ("Multiply", "forward"), ("Sum", "forward"), ("Sum", "backward"), ("Multiply", "backward")]
    tokens = [entry[0] for entry in log]
    assert tokens == sorted(tokens) and all(entry[3] == 3 for entry in log if entry[1] != "Sum")


def test_a_meter_that_missed_the_forward_teaches():
    y = (Tensor(np.ones(3), requires_grad=True) * 2.0).sum()
    with pytest.raises(RuntimeError, match="let it run during the forward too"), Meter().running():
        y.backward()


def test_metered_and_plain_runs_give_the_same_gradients():
    model, other = (GPT(GPTConfig(7, 4, 2, 2, 8)).initialize(0, np.float64) for _ in range(2))
    ids = np.array([[1, 2, 3, 0], [4, 5, 6, 6]])
    model.loss(ids, ids).backward()
    with Meter().running():
        other.loss(ids, ids).backward()
    np.testing.assert_array_equal(model.slabs[0].grad, other.slabs[0].grad)
