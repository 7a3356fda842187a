"""Plans by name, and a plan that all ranks agree on."""

from functools import partial

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.comm.collectives import all_reduce
from minipar.memory.remat.optimal import optimal
from minipar.memory.remat.plans import keep_all, rematerialize, sqrt_segments, uniform
from minipar.memory.remat.policies import OptimalPolicy, max_over_ranks, parse_bytes, plan_policy
from minipar.nn.chain import chain
from minipar.testing import worlds
from tests.support.planned import batch_of, costs_of, model_of, step


def test_every_name():
    parts = chain(model_of("gpt"))
    for text, policy in (("none", keep_all), ("full", partial(uniform, 1)), ("sqrt", sqrt_segments),
                         ("every:2", partial(uniform, 2))):
        assert plan_policy(text)(parts) == policy(parts)
    policy = plan_policy("optimal:64MB")
    assert isinstance(policy, OptimalPolicy) and policy.budget == 64_000_000


@pytest.mark.parametrize("text", ["half", "", "sqrt:2", "every", "every:0", "every:-1", "every:x",
                                  "optimal", "optimal:", "optimal:4XB", "optimal:MB"])
def test_another_name_is_one_line(text):
    with pytest.raises(ValueError, match="optimal:64MB|write 64MB") as refused:
        plan_policy(text)
    assert "\n" not in str(refused.value) and repr(text.removeprefix("optimal:"))[:-1] in str(
        refused.value)


@pytest.mark.parametrize("text, count", [("512", 512), ("1kB", 1000), ("64MB", 64_000_000),
                                         ("1.5 GB", 1_500_000_000), ("2KiB", 2048), (".5g", None),
                                         ("0.5gib", 2**29), ("9" * 400, None)])
def test_bytes(text, count):
    if count is None:
        with pytest.raises(ValueError, match="is no number of bytes"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == count


@pytest.mark.parametrize("kind", ["gpt", "gelu"])
def test_the_parts_are_measured_once_with_the_first_batch(kind):
    seen = []
    costs = costs_of(kind)
    budget = (optimal(costs, 10**9).peak + costs.loss_bytes) // 2
    policy = OptimalPolicy(budget, lambda array: (seen.append(array), array)[1])
    counted = step(kind, policy)
    assert counted.peak == optimal(costs, budget).peak <= budget
    assert step(kind, policy).peak == counted.peak
    assert len(seen) == 1 and seen[0].dtype == np.int64


def test_nothing_is_planned_where_nothing_is_kept():
    model, policy = model_of("gpt"), OptimalPolicy(1)
    rematerialize(model, policy)
    with no_grad():
        logits = model(batch_of("gpt")[0])
    np.testing.assert_array_equal(logits.data, model_of("gpt")(batch_of("gpt")[0]).data)
    assert not policy.plans


def test_a_budget_that_is_too_small_is_refused_by_name():
    with pytest.raises(ValueError, match="do not fit in 1,000 bytes.*: give at least "):
        step("gpt", OptimalPolicy(1000))


@worlds(1, 3, mpi=(2,))
def test_ranks_with_other_costs_have_one_plan(world):
    """Each has another number of samples; all plan for the largest."""
    def body(comm):
        model, (ids, _) = model_of("gpt", dropout=0.0), batch_of("gpt")
        policy = OptimalPolicy(150_000, partial(all_reduce, comm, op="max"))
        policy.profile(model, chain(model), ids[:comm.rank + 1])
        (plan,) = policy.plans.values()
        alone = OptimalPolicy(150_000)
        alone.profile(model, chain(model), ids[:comm.size])
        assert plan == alone(chain(model))
    world.run(body)


def test_agreeing_alone_changes_nothing():
    for kind in ("gpt", "selective gpt", "relu"):
        assert max_over_ranks(costs_of(kind), lambda array: array) == costs_of(kind)
