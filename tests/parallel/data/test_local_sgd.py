"""Local SGD: what becomes of momentum, when it is data parallelism, what it sends, where it drifts.
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW
from minipar.parallel.cost.data_parallel import all_reduce_elements
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support.cases import Case, assert_all_close
from tests.support.given_gradients import GivenGradients, step_along

CASE = Case("mlp", mask="full", parts=(9,))
MOMENTUM = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
            "adamw": lambda slabs: AdamW(slabs, lr=0.01)}


def run(comm, name, optimizer, steps=3, **options):
    strategy = make_strategy(name, CASE.build(), comm, **options)
    stepper = optimizer(strategy.slabs)
    for step in range(steps):
        x, labels = CASE.batch(step)
        mine = np.array(strategy.rows(9))
        stepper.zero_grad()
        strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
        strategy.step(stepper)
    return strategy.state_dict()


def distance(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


@worlds(3, mpi=(3,))
def test_averaged_every_step_it_is_data_parallelism(world):
    """With SGD and as many targets on each rank, unless momentum is reset; with Adam it is not."""
    def body(comm):
        right = run(comm, "ddp", MOMENTUM["sgd"])
        for states in ("kept", "averaged"):
            found = run(comm, "local_sgd", MOMENTUM["sgd"], every=1, local_states=states)
            assert_all_close(found, right, rtol=1e-10, atol=1e-13)
        for options in ({"every": 1, "local_states": "reset"}, {"every": 2}):
            assert distance(run(comm, "local_sgd", MOMENTUM["sgd"], **options), right) > 1e-4
        assert distance(run(comm, "local_sgd", MOMENTUM["adamw"], every=1),
                        run(comm, "ddp", MOMENTUM["adamw"])) > 1e-4
    world.run(body)


@worlds(2, mpi=())
def test_groups_of_parameters_count_as_one_step(world):
    """PyTorch's averager once counted a step for each group."""
    def body(comm):
        def grouped(slabs):
            return SGD(slabs, lr=0.3, momentum=0.9, groups=[NO_DECAY_FOR_VECTORS])
        found = run(comm, "local_sgd", grouped, steps=4, every=2)
        assert_all_close(found, run(comm, "local_sgd", MOMENTUM["sgd"], steps=4, every=2),
                         rtol=1e-12, atol=1e-14)
    world.run(body)


@worlds(3, mpi=())
def test_post_local_averages_in_each_of_the_first_steps(world):
    def body(comm):
        right = run(comm, "ddp", MOMENTUM["sgd"])
        found = run(comm, "local_sgd", MOMENTUM["sgd"], every=50, average_first=3)
        assert_all_close(found, right, rtol=1e-10, atol=1e-13)
    world.run(body)


@pytest.mark.parametrize("name, options, sends", [
    ("local_sgd", {"every": 3}, lambda a, n: [0, 0, a] * 2),
    ("local_sgd", {"every": 3, "local_states": "averaged"}, lambda a, n: [0, 0, 2 * a] * 2),
    ("diloco", {"every": 3}, lambda a, n: [0, 0, a] * 2),
    ("elastic", {"every": 2}, lambda a, n: [0, a] * 3),
    ("gossip", {}, lambda a, n: [2 * n] * 6)])
def test_bytes_of_each_step(name, options, sends):
    def body(comm):
        strategy = make_strategy(name, CASE.build(), comm, **options)
        stepper, sent = MOMENTUM["sgd"](strategy.slabs), []
        for step in range(6):
            x, labels = CASE.batch(step)
            mine = np.array(strategy.rows(9))
            comm.start_trace()
            stepper.zero_grad()
            strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
            strategy.step(stepper)
            sent.append(comm.stop_trace().bytes_sent(comm.rank))
        return sent, sum(slab.data.size for slab in strategy.slabs)
    rings = Cluster(3, chooser=None).run(body)[0]
    for rank, (sent, n) in enumerate(rings):
        assert sent == sends(8 * int(all_reduce_elements(n, 3)[rank]), 8 * n)


@pytest.mark.parametrize("every, fixed", [(1, 0.0), (2, -0.043), (8, -0.31), (64, -2.5)])
@pytest.mark.one_in(2)
def test_where_curvatures_differ_the_fixed_point_moves(every, fixed):
    """Curvatures 1 and 0.1 around 1 and -10, lr 0.1: the gradients of both cancel at 0."""
    def body(comm):
        curvature, minimum = [(1.0, 1.0), (0.1, -10.0)][comm.rank]
        model = GivenGradients({"w": (1,)})
        model.w.data[...] = 0
        strategy = make_strategy("local_sgd", model, comm, every=every)
        stepper = SGD(strategy.slabs, lr=0.1)
        for _ in range(640):
            step_along(strategy, stepper, {"w": curvature * (strategy.slabs[0].data - minimum)})
        return float(strategy.state_dict()["w"][0])
    assert Cluster(2).run(body)[0][0] == pytest.approx(fixed, rel=0.03, abs=1e-6)


def test_with_equal_curvatures_the_mean_is_that_of_data_parallelism():
    def body(comm):
        found = []
        for every in (1, 7):
            model = GivenGradients({"w": (3,)})
            strategy = make_strategy("local_sgd", model, comm, every=every)
            stepper = SGD(strategy.slabs, lr=0.1, momentum=0.5)
            for _ in range(20):
                step_along(strategy, stepper, {"w": strategy.slabs[0].data - comm.rank})
            found.append(strategy.state_dict())
        assert_all_close(*found, rtol=1e-10, atol=1e-13)
    Cluster(3).run(body)
