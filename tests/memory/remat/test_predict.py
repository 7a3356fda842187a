"""The predicted cost of a plan equals the counts of ledger and meter, byte for byte."""

from functools import cache, partial

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Meter, Tensor, backward
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import keep_all, run_plan, sqrt_segments, uniform
from minipar.memory.remat.predict import BACKWARD, predict, run_steps
from minipar.memory.remat.profile import profile_parts
from minipar.memory.remat.recompute import checkpoint
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step
from tests.support.planned import KINDS, batch_of, costs_of, model_of, random_plan, step

PLANS = {"none": keep_all, "full": partial(uniform, 1), "every 2": partial(uniform, 2),
         "square root": sqrt_segments,
         "nested": lambda parts: ((((0,), 1), 2), (3, (4, (5,))), *range(6, len(parts))),
         "in one": lambda parts: (tuple(range(len(parts))),)}
plain = cache(partial(step, policy=keep_all))


def check(kind, dtype, dropout, policy):
    costs = costs_of(kind, dtype, dropout)
    plan = policy(chain(model_of(kind)))
    price, counted = predict(plan, costs), step(kind, lambda parts: plan, dtype, dropout)
    once = plain(kind, dtype=dtype, dropout=dropout)
    inside = sum(part.nested_flops for part in costs.parts)
    assert price.peak == counted.peak
    assert price.extra_flops - inside == counted.forward - once.forward


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_predicted_is_counted(kind, name, dtype, dropout):
    check(kind, dtype, dropout, PLANS[name])


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_predicted_is_counted_for_any_plan(kind, dropout):
    rng = np.random.default_rng(1)
    for _ in range(100):
        check(kind, np.float32, dropout, lambda parts: random_plan(rng, 0, len(parts)))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_without_numbers_cost_the_same(kind):
    assert costs_of(kind, shapes_only=True) == costs_of(kind)


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_flops_of_backward(kind):
    """The steps add up to all that the meter counts; the loss is not among the parts."""
    costs, counted = costs_of(kind), step(kind, sqrt_segments)
    steps = list(run_steps(sqrt_segments(chain(model_of(kind))), costs))
    backward_flops = sum(s.flops - s.recomputed for s in steps if s.kind == BACKWARD)
    forward_flops = sum(s.flops for s in steps) - backward_flops
    x, targets = batch_of(kind)
    logits = Tensor(np.ones((*targets.shape, 23 if kind in KINDS[:2] else 5), np.float32), True)
    with Meter().running() as meter:
        backward(ag.cross_entropy(logits, targets))
    assert counted.forward == forward_flops + meter.total_flops("forward")
    assert counted.backward == backward_flops + meter.total_flops("backward")


def test_odd_parts():
    """Parts that save nothing, save their output, compute again by themselves."""
    calls = []

    def attention_like(x):                  # needs more in backward than it keeps
        y = checkpoint(lambda x: ag.sum(ag.exp(ag.concatenate([x] * 8)) * 0.125) + x * 0.0, x)
        return ag.tanh(y)
    apply = [lambda x: x * 2.0, ag.exp, lambda x: x - 1.0, attention_like, ag.tanh,
             lambda x: ag.linear(x, x[:4] * 0.1), lambda x: x + 1.0]
    parts = [lambda x, i=i, f=f: (calls.append(i), f(x))[1] for i, f in enumerate(apply)]
    x = Tensor(np.linspace(0, 1, 24).reshape(6, 4), requires_grad=True)
    costs = profile_parts(parts, x, ag.sum)
    assert [part.num_saved for part in costs.parts] == [0, 1, 0, 2, 1, 2, 0]
    assert costs.parts[3].peak_bytes > costs.parts[3].saved_bytes
    rng, gradients = np.random.default_rng(2), set()
    plans = [tuple(range(7)), (0, 1, 2, 3, (4,), (5, 6)), ((0, 1, 2, 3, 4, 5, 6),),
             ((0,), 1, (2, (3, 4)), 5, (6,)), *[random_plan(rng, 0, 7) for _ in range(30)]]
    for plan in plans:
        calls.clear()
        x.grad = None
        with Ledger().recording() as ledger, Meter().running() as meter:
            backward(ag.sum(run_plan(plan, parts, x)))
        price, once = predict(plan, costs), sum(part.forward_flops for part in costs.parts)
        assert price.peak == ledger.peak, plan
        assert price.extra_flops == meter.total_flops("forward") - once - 24, plan   # the sum
        assert price.runs == tuple(map(calls.count, range(7))), plan
        gradients.add(x.grad.tobytes())
    assert len(gradients) == 1


def test_measuring_leaves_no_trace():
    model, (x, targets) = model_of("gpt"), batch_of("gpt")
    ledger, meter = Ledger(model.parameters()), Meter()
    with ledger.recording(), meter.running(), training_step(1, 2, range(3)):
        profile_parts(chain(model), x, lambda y: model.criterion(y, targets), model.parameters())
    assert ledger.peak == 0 and not meter.flops
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("plan", [(), (0, 1), (0, 2, 1, 3, 4, 5, 6), (0, (1, 2), 2, 3, 4, 5, 6)])
def test_a_plan_of_other_parts_is_refused(plan):
    with pytest.raises(ValueError, match="name the parts 0 … 6, each once and in this order"):
        predict(plan, costs_of("gpt"))
