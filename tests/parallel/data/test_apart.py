"""Ranks that train apart equal their specification, copies in one process; their messages."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.optim import SGD, AdamW
from minipar.optim.registry import OPTIMIZERS as ALL_OPTIMIZERS
from minipar.optim.registry import make_optimizer
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support import sweeps
from tests.support.cases import APART, Case, assert_all_close

STEPS = 6
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}
RULES = [("local_sgd", {"every": 1}), ("local_sgd", {"every": 2, "local_states": "averaged"}),
         ("local_sgd", {"every": 3, "local_states": "reset"}), ("local_sgd", {"every": 4}),
         ("diloco", {"every": 3}), ("diloco", {"every": 4, "outer_lr": 0.5}),
         ("diloco", {"every": 2, "outer_lr": 1.0, "outer_momentum": 0.0}),
         ("elastic", {"every": 1}), ("elastic", {"every": 2, "pull": 0.1})]


def rule_of(name):
    """Options of a strategy, for its specification, which has no defaults."""
    options = STRATEGIES[name].options
    return {"every": 3} if "every" in options else {"delay": 2} if "delay" in options else {}


RULES += [(name, rule_of(name)) for name in APART if name not in dict(RULES)]
CASES = [pytest.param(optimizer, name, rule, id=f"{kind}-{name}-{rule.get('every', 1)}")
         for kind, optimizer in OPTIMIZERS.items() for name, rule in RULES]


def step_once(strategy, case, optimizer, step, max_norm=0.5):
    """The loss and the norm of a step on this rank's rows."""
    inputs, targets = case.batch(step)
    batches = []
    for part in case.rows_of_parts():
        mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
        batches.append(Microbatch(inputs[mine], targets[mine], step * len(inputs) + mine))
    optimizer.zero_grad()
    loss = strategy.forward_backward(batches, 5, step)
    strategy.clip_grad_norm(max_norm)
    strategy.step(optimizer)
    return loss


def train(strategy, case, optimizer, steps=STEPS):
    """The losses, and the parameters at the end."""
    stepper = optimizer(strategy.slabs)
    found = {f"loss {step}": step_once(strategy, case, stepper, step) for step in range(steps)}
    return found | strategy.state_dict()


def copies(name, case, optimizer, num_copies, rule):
    return Cluster(1).run(lambda comm: train(STRATEGIES[name].specification(
        case.build(), comm, num_copies, **rule), case, optimizer))[0][0]


@worlds(3, mpi=(3,), slow=(1, 2, 4, 5), slow_mpi=(4,))
@pytest.mark.parametrize("optimizer, name, rule", [
    *CASES[:len(RULES)], *sweeps.every(3, CASES[len(RULES):])])
@pytest.mark.one_in(3)
def test_it_equals_copies_in_one_process(world, optimizer, name, rule):
    """Also where steps are left over after the last exchange."""
    case = Case("gpt dropout", parts=(7, 4))
    right = copies(name, case, optimizer, world.size, rule)

    def body(comm):
        strategy = make_strategy(name, case.build(), comm, **rule)
        assert_all_close(train(strategy, case, optimizer), right, rtol=1e-10, atol=1e-13)
    world.run(body)


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("sizes", [{"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}],
                         ids=lambda sizes: "-".join(sizes))
@pytest.mark.one_in(6)
def test_also_beside_other_axes(world, sizes, name):
    """Over dp ranks train alone; over pp, tp and cp they share one copy."""
    case, rule = Case("gpt deep tied", parts=(4, 4)), rule_of(name)
    right = copies(name, case, lambda slabs: SGD(slabs, lr=0.3), 2, rule)

    def body(comm):
        strategy = make_strategy(name, case.build(), DeviceMesh(comm, **sizes), **rule)
        assert_all_close(train(strategy, case, lambda slabs: SGD(slabs, lr=0.3)), right,
                         rtol=1e-10, atol=1e-13)
    world.run(body)


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
@pytest.mark.parametrize("how", ["averaged", "reset"])
def test_all_states_of_any_optimizer_are_averaged_or_reset(name, how):
    """Muon has states of runs of a slab; codes of 8 bits have no mean."""
    case = Case("gpt dropout", parts=(6,))

    def body(comm):
        strategy = make_strategy("local_sgd", case.build(), comm, every=2, local_states=how)
        optimizer = make_optimizer(name, strategy.slabs, 0.01, None, None)
        for step in range(2):
            step_once(strategy, case, optimizer, step)
        arrays = [array.copy() for each in optimizer.local_states() for array in each.values()]
        assert arrays or not optimizer.state_names
        return arrays
    if (name, how) == ("adamw_8bit", "averaged"):
        with pytest.raises(ValueError, match="codes of 8 bits have no mean"):
            Cluster(2).run(body)
        return
    first, second = Cluster(2).run(body)[0]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert how == "averaged" or not one.any()
