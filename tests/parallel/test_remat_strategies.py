"""Rematerialization under strategies: the same to the last bit, and as little gathered at a time.

Every strategy is in the composition matrix.
"""

from functools import partial

import numpy as np
import pytest

from minipar.backend import observing_allocations
from minipar.comm import Cluster
from minipar.memory.remat.plans import rematerialize
from minipar.memory.remat.policies import OptimalPolicy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.parallel.test_memory import Watcher
from tests.support.cases import REMATS, STRATEGIES, Case, train
from tests.support.matrix_memory import check_remat

CASE = Case("gpt dropout", "adamw", parts=(4, 3, 3), max_norm=0.1)


@pytest.mark.slow
@worlds(4, mpi=(4,))
@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("model", ["gpt tied", "gpt untied", "gpt grouped", "mlp dropout"])
def test_other_models(world, model, remat):
    if model.startswith("mlp") and remat == "selective":
        pytest.skip("an MLP has no attention")
    for name in ("fsdp", "dp 2 × tp 2"):
        check_remat(world, name, CASE._replace(model=model, remat=remat))


@pytest.mark.parametrize("remat", ["full", "nested", "optimal:30KB"])
@pytest.mark.parametrize("name", ["fsdp", "fsdp no prefetch"])
@pytest.mark.one_in(2)
def test_at_most_two_gathered_units_are_alive(name, remat):
    def body(comm):
        watcher = Watcher("communication")
        with observing_allocations(watcher):
            train(comm, name, CASE._replace(remat=remat))
        assert watcher.most == 2 and watcher.num_seen > 10 and watcher.num_alive() == 0
    Cluster(2).run(body)


def test_zero3_holds_no_weight_beyond_its_use():
    def body(comm):
        watcher = Watcher("communication")
        with observing_allocations(watcher):
            train(comm, "zero3", CASE._replace(remat="nested"))
        assert watcher.most == 2 and watcher.num_alive() == 0
    Cluster(2).run(body)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp kept", "zero3"])
@pytest.mark.one_in(2)
def test_a_part_costs_what_it_costs_alone(name):
    """Gathered weights are no activations; nothing that measuring gathers stays."""
    def costs(comm, name):
        seen, watcher = [], Watcher("communication")
        policy = OptimalPolicy(10**6, lambda array: (seen.append(array), array)[1])
        strategy = STRATEGIES[name](rematerialize(CASE.build(), policy), comm)
        ids, targets = CASE.batch(0)
        with observing_allocations(watcher):
            strategy.run_microbatch(Microbatch(ids[:4], targets[:4], np.arange(4)), 1.0)
        assert watcher.most <= (5 if name == "fsdp kept" else 2)
        return seen[0]
    alone = Cluster(1).run(partial(costs, name="ddp"))[0][0]
    for found in Cluster(2).run(partial(costs, name=name))[0]:
        np.testing.assert_array_equal(found, alone)
