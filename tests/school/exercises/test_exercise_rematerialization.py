"""Exercises run_plan, recompute_segment, uniform_segments, cheapest and revolve."""

from functools import partial

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Meter, Tensor, backward
from minipar.memory.ledger import Ledger
from minipar.memory.remat.optimal import frontier, optimal
from minipar.memory.remat.plans import (
    keep_all,
    rematerialize,
    run_plan,
    sqrt_segments,
    uniform,
)
from minipar.memory.remat.predict import predict
from minipar.memory.remat.profile import ChainProfile, PartProfile, profile_parts
from minipar.memory.remat.recompute import checkpoint
from minipar.memory.remat.revolve import revolve, revolve_steps
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.chain import chain
from minipar.nn.step_context import training_step

TAPE = 100          # so much more than an input that only one at a time is worth its place
UNIT = PartProfile(1, (TAPE, TAPE), (TAPE, TAPE), 1, 0, 1, 1, 0, 2)
CONFIG = GPTConfig(11, context=8, num_layers=6, num_heads=2, width=8, dropout=0.2)


def part(calls, i):
    """Part number i notes that it is called, and multiplies by i + 2."""
    def apply(x):
        calls.append(i)
        return ag.exp(ag.log(x)) * float(i + 2)
    return apply


def test_a_plan_names_the_parts_in_their_order():
    for plan in ((0, 1, 2, 3), (0, (1, 2), 3), ((0, 1), (2, 3)), (((0, 1), 2), 3)):
        calls, x = [], Tensor(np.ones(2), requires_grad=True)
        y = run_plan(plan, [part(calls, i) for i in range(4)], x)
        assert calls == [0, 1, 2, 3], f"the plan {plan} ran the parts {calls} in forward"
        np.testing.assert_allclose(y.data, 120)
        backward(ag.sum(y))
        np.testing.assert_allclose(x.grad, 120, err_msg=f"the gradient with the plan {plan}")


@pytest.mark.parametrize("plan, again", [
    ((0, 1, 2, 3), []), ((0, (1, 2), 3), [1, 2]), (((0, 1), (2, 3)), [2, 3, 0, 1]),
    (((0, (1, 2)), 3), [0, 1, 2]), ((((0, 1), 2), 3), [0, 1, 2, 0, 1])])
def test_segments_are_computed_again_the_last_one_first(plan, again):
    calls, x = [], Tensor(np.ones(2), requires_grad=True)
    y = run_plan(plan, [part(calls, i) for i in range(4)], x)
    calls.clear()
    backward(ag.sum(y))
    assert calls == again, f"backward of the plan {plan} computed {calls} again"


def two_layers(weights, x):
    """A function to be recomputed: it ends with a product that backward does not need."""
    return ag.linear(ag.gelu(ag.linear(x, weights[0])), weights[1])


def count(function):
    """(gradients, peak bytes, bytes while backward is through, FLOPs of forward)."""
    rng = np.random.default_rng(0)
    weights = [Tensor(rng.standard_normal(shape), True) for shape in ((4, 8), (8, 4))]
    x = Tensor(rng.standard_normal((16, 4)), True)
    ledger, meter = Ledger(weights), Meter()
    with ledger.recording(), meter.running():
        backward(ag.sum(function(partial(two_layers, weights), x)))
    return [t.grad for t in (x, *weights)], ledger.peak, ledger.live, meter.total_flops("forward")


def test_the_gradients_are_bit_for_bit_the_same():
    plain, again = count(lambda function, x: function(x)), count(checkpoint)
    for expected, found in zip(plain[0], again[0]):
        assert np.array_equal(found, expected)


def test_what_is_computed_again_is_counted():
    """At the peak: x, which the first layer saves as well, gelu's slope and result."""
    _, peak, live, _ = count(checkpoint)
    assert (peak, live) == (8 * 16 * (4 + 8 + 8), 0)


def test_an_input_that_was_used_goes_before_the_next_segment_comes_back():
    """80 bytes each: the inner segment's input and three results; the outer one's input is gone."""
    def inner(x):
        return ag.exp(ag.exp(ag.exp(x * 1.0)))
    ledger, x = Ledger(), Tensor(np.full(10, -1.0), True)
    with ledger.recording():
        backward(ag.sum(checkpoint(lambda x: ag.exp(checkpoint(inner, x * 1.0)), x)))
    assert ledger.peak == 4 * 80


def test_a_recomputation_ends_with_the_last_saved_array():
    plain, again = count(lambda function, x: function(x)), count(checkpoint)
    product = 2 * 16 * 4 * 8
    gelu = plain[3] - 2 * product - 16 * 4       # and the sum
    assert again[3] - plain[3] == product + gelu, "the last product is of no use to backward"


def gpt_step(policy):
    model = rematerialize(GPT(CONFIG).initialize(0, np.float64), policy)
    ids = np.arange(16).reshape(2, 8) % 11
    ledger = Ledger(model.parameters())
    with ledger.recording(), training_step(0, 0, range(2)):
        backward(model.loss(ids, ids))
    return [p.grad for p in model.parameters()], ledger.peak


def test_segments_inside_segments_and_dropout():
    plain, _ = gpt_step(keep_all)
    for plan in ((0, (1, 2, 3), (4, 5, 6), 7), (0, (((1, 2), 3), (4, 5)), 6, 7)):
        for expected, found in zip(plain, gpt_step(lambda parts, plan=plan: plan)[0]):
            assert np.array_equal(found, expected)


def test_every_k_blocks():
    parts = chain(GPT(CONFIG))
    for k, plan in ((1, (0, (1,), (2,), (3,), (4,), (5,), (6,), 7)), (2, (0, (1, 2), (3, 4), (5, 6),
                    7)), (4, (0, (1, 2, 3, 4), (5, 6), 7)), (9, (0, (1, 2, 3, 4, 5, 6), 7))):
        assert uniform(k, parts) == plan, f"segments of {k} blocks"
    assert uniform(2, chain(MLP([3, 4, 4, 2]))) == ((0, 1), (2,))
    assert sqrt_segments(parts) == (0, (1, 2, 3), (4, 5, 6), 7)
    apart = [parts[1], parts[2], parts[7], parts[3], parts[4], parts[5]]
    assert uniform(2, apart) == ((0, 1), 2, (3, 4), (5,)), "what is no block ends a segment"
    assert uniform(3, apart) == ((0, 1), 2, (3, 4, 5)), "what is no block ends a segment"


@pytest.mark.parametrize("length", [3, 8, 13])
def test_the_best_plan_of_equal_parts_is_revolve_s(length):
    costs = ChainProfile((UNIT,) * length)
    for snapshots in (1, 2, 3, 5):
        budget = snapshots + TAPE
        choice = optimal(costs, budget)
        assert choice.peak <= budget, f"the plan {choice.plan} needs {choice.peak} > {budget} bytes"
        assert choice.extra_flops == revolve_steps(length, snapshots)


def test_plans_keep_their_promise_and_beat_the_square_root():
    model, ids = GPT(CONFIG).initialize(0), np.arange(16).reshape(2, 8) % 11
    costs = profile_parts(chain(model), ids, lambda y: model.criterion(y, ids), model.parameters())
    choices, root = frontier(costs), predict(sqrt_segments(chain(model)), costs)
    peaks, flops = [c.peak for c in choices], [c.extra_flops for c in choices]
    assert all(a < b for a, b in zip(peaks, peaks[1:])), f"peaks rise: {peaks}"
    assert all(a > b for a, b in zip(flops, flops[1:])), f"FLOPs fall: {flops}"
    best = optimal(costs, root.peak)
    assert best.peak <= root.peak and best.extra_flops < root.extra_flops
    assert choices[-1].extra_flops == 0
    assert choices[-1].peak <= predict(keep_all(chain(model)), costs).peak


@pytest.mark.parametrize("snapshots", [1, 2, 3, 4])
def test_revolve_s_plan_has_the_fewest_steps(snapshots):
    for length in range(1, 24):
        plan = revolve(length, snapshots)
        price = predict(plan, ChainProfile((UNIT,) * length))
        assert price.peak <= snapshots + TAPE, \
            f"{plan}: more than {snapshots} inputs and one tape are alive"
        assert price.extra_flops == revolve_steps(length, snapshots), f"{length} steps: {plan}"


def test_revolve_begins_where_it_is_told():
    assert revolve(1, 1, 7) == (7,)
    assert revolve(3, 1, 5) == (((5,), 6), 7)
