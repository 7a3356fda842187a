"""Local SGD equals its specification, copies in one process; every step, it is data parallelism."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.optim import SGD, AdamW
from minipar.parallel.data.local_sgd_by_copies import LocalSGDByCopies
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support import sweeps
from tests.support.cases import Case, assert_all_close

STEPS = 6
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}


def train(strategy, case, optimizer, steps=STEPS):
    """Losses, norms of the first copy or rank, and the parameters at the end."""
    stepper = optimizer(strategy.slabs)
    found = {}
    for step in range(steps):
        inputs, targets = case.batch(step)
        batches = []
        for part in case.rows_of_parts():
            mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(inputs[mine], targets[mine], step * len(inputs) + mine))
        stepper.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(batches, 5, step)
        strategy.clip_grad_norm(0.5)
        strategy.step(stepper)
    return found | strategy.state_dict()


def copies(case, optimizer, num_copies, every):
    return Cluster(1).run(lambda comm: train(
        LocalSGDByCopies(case.build(), comm, num_copies, every), case, optimizer))[0][0]


@worlds(1, 3, mpi=(3,), slow=(2, 4))
@pytest.mark.parametrize("optimizer, every", sweeps.every(2, [
    pytest.param(optimizer, every, id=f"{name}-{every}")
    for name, optimizer in OPTIMIZERS.items() for every in (1, 2, 3)]))
@pytest.mark.one_in(2)
def test_it_equals_copies_in_one_process(world, every, optimizer):
    case = Case("gpt dropout", parts=(7, 4))
    right = copies(case, optimizer, world.size, every)

    def body(comm):
        strategy = make_strategy("local_sgd", case.build(), comm, every=every)
        assert_all_close(train(strategy, case, optimizer), right, rtol=1e-10, atol=1e-13)
    world.run(body)


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("sizes", [{"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}],
                         ids=lambda sizes: "-".join(sizes))
@pytest.mark.one_in(2)
def test_also_beside_other_axes(world, sizes):
    """Over dp ranks train alone; over pp, tp and cp they share one copy."""
    case = Case("gpt deep tied", parts=(4, 4))
    right = copies(case, lambda slabs: SGD(slabs, lr=0.3), 2, 3)

    def body(comm):
        strategy = make_strategy("local_sgd", case.build(), DeviceMesh(comm, **sizes), every=3)
        assert_all_close(train(strategy, case, lambda slabs: SGD(slabs, lr=0.3)), right,
                         rtol=1e-10, atol=1e-13)
    world.run(body)


@worlds(3, mpi=())
def test_averaged_every_step_it_is_data_parallelism(world):
    """With SGD and as many targets on each rank; averaged later, it is not."""
    case = Case("mlp", mask="full", parts=(9,))

    def run(comm, name, **options):
        strategy = make_strategy(name, case.build(), comm, **options)
        stepper = SGD(strategy.slabs, lr=0.3)
        for step in range(2):
            x, labels = case.batch(step)
            mine = np.array(strategy.rows(9))
            stepper.zero_grad()
            strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
            strategy.step(stepper)
        return strategy.state_dict()

    def body(comm):
        right = run(comm, "ddp")
        assert_all_close(run(comm, "local_sgd", every=1), right, rtol=1e-10, atol=1e-13)
        late = run(comm, "local_sgd", every=2)
        assert max(np.abs(late[name] - right[name]).max() for name in right) > 1e-4
    world.run(body)


def test_it_sends_parameters_every_few_steps_and_nothing_between():
    case = Case("mlp", parts=(8,))

    def body(comm):
        strategy = make_strategy("local_sgd", case.build(), comm, every=3)
        stepper, sent = SGD(strategy.slabs, lr=0.1), []
        for step in range(6):
            x, labels = case.batch(step)
            mine = np.array(strategy.rows(8))
            comm.start_trace()
            stepper.zero_grad()
            strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
            strategy.step(stepper)
            sent.append(comm.stop_trace().bytes_sent())
        return sent
    for sent in Cluster(2).run(body)[0]:
        assert sent[:2] == sent[3:5] == [0, 0] and sent[2] == sent[5] > 0


def test_the_table_says_what_it_equals():
    assert STRATEGIES["local_sgd"].specification is LocalSGDByCopies
