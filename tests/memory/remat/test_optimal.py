"""Optimal plans: as good as the best of all plans, and what they promise is counted."""

from functools import partial

import numpy as np
import pytest

from minipar.memory.remat.optimal import frontier, optimal
from minipar.memory.remat.plans import keep_all, sqrt_segments, uniform
from minipar.memory.remat.predict import predict
from minipar.memory.remat.profile import ChainProfile, PartProfile
from minipar.memory.remat.revolve import revolve, revolve_steps
from minipar.nn.chain import chain
from tests.support.planned import KINDS, all_plans, costs_of, model_of, random_costs, step

TAPE = 100          # so much more than an input that only one at a time is worth its place
UNIT = PartProfile(1, (TAPE, TAPE), (TAPE, TAPE), 1, 0, 1, 1, 0, 2)


def best_of_all(costs):
    """Peaks and FLOPs worth having, of every plan there is."""
    best = []
    for price in sorted(predict(plan, costs)[:2] for plan in all_plans(0, len(costs.parts))):
        if not best or price[1] < best[-1][1]:
            best.append(price)
    return best


@pytest.mark.parametrize("length", [1, 2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_no_plan_is_better(length):
    rng = np.random.default_rng(length)
    for _ in range(12):
        costs = random_costs(rng, length)
        choices = frontier(costs)
        assert [choice[:2] for choice in choices] == best_of_all(costs)
        for choice in choices:
            assert predict(choice.plan, costs)[:2] == choice[:2]


@pytest.mark.parametrize("length, snapshots, extra", [
    (1, 1, 0), (2, 1, 1), (10, 1, 45), (10, 2, 20), (10, 3, 15), (10, 20, 9), (20, 3, 45),
    (25, 2, 94), (39, 1, 741), (39, 2, 192), (39, 3, 125), (39, 4, 100), (39, 5, 89)])
@pytest.mark.one_in(3)
def test_revolve(length, snapshots, extra):
    """As an independent implementation counts; the general program finds nothing better."""
    costs = ChainProfile((UNIT,) * length)
    price = predict(revolve(length, snapshots), costs)
    assert revolve_steps(length, snapshots) == extra == price.extra_flops
    assert sum(price.runs) == length + extra
    assert price.peak <= snapshots + TAPE
    assert optimal(costs, snapshots + TAPE).extra_flops == extra


def test_revolve_refuses_what_it_cannot_do():
    for length, snapshots in ((0, 1), (3, 0)):
        with pytest.raises(ValueError, match="at least one of each"):
            revolve(length, snapshots)
        with pytest.raises(ValueError, match="at least one of each"):
            revolve_steps(length, snapshots)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(2)
def test_never_worse_than_plans_by_rule(kind, dropout):
    costs, parts = costs_of(kind, dropout=dropout), chain(model_of(kind))
    for policy in (keep_all, sqrt_segments, *[partial(uniform, k) for k in range(1, len(parts))]):
        price = predict(policy(parts), costs)
        choice = optimal(costs, price.peak)
        assert choice.peak <= price.peak and choice.extra_flops <= price.extra_flops


@pytest.mark.parametrize("kind, dtype", [("gpt", np.float32), ("gpt", np.float64),
                                         ("selective gpt", np.float32), ("relu", np.float64)])
@pytest.mark.one_in(2)
def test_predicted_is_counted_and_gradients_are_the_same_at_five_budgets(kind, dtype):
    costs, plain = costs_of(kind, dtype), step(kind, keep_all, dtype)
    choices = frontier(costs)
    least, most = choices[0].peak, predict(keep_all(costs.parts), costs).peak
    forward = sum(part.forward_flops + part.nested_flops for part in costs.parts)
    for budget in np.linspace(least, most, 5).astype(int).tolist():
        choice = optimal(costs, budget)
        counted = step(kind, lambda parts, plan=choice.plan: plan, dtype)
        assert choice.peak == counted.peak <= budget
        assert choice.extra_flops - (forward - sum(part.forward_flops for part in costs.parts)) == \
            counted.forward - plain.forward
        for name, gradient in plain.gradients.items():
            np.testing.assert_array_equal(counted.gradients[name], gradient, err_msg=name)


def test_an_impossible_budget_names_the_least_that_works():
    costs = costs_of("gpt")
    with pytest.raises(ValueError, match="do not fit in 1,000 bytes") as refused:
        optimal(costs, 1000)
    assert "\n" not in str(refused.value)
    least = int(str(refused.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    assert optimal(costs, least).peak == least
    with pytest.raises(ValueError, match=f"at least {least:,}"):
        optimal(costs, least - 1)


def test_equal_blocks_are_planned_by_their_kind():
    """60 blocks, as a GPT has them between embedding and head."""
    costs = ChainProfile((UNIT._replace(input_bytes=0), *[UNIT] * 60, UNIT), 5)
    assert optimal(costs, 10**9).plan == tuple(range(62))
    assert optimal(costs, 60 + TAPE + costs.loss_bytes).extra_flops == 61
