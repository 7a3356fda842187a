"""Delayed averaging equals copies in one process; its corrections, messages and checkpoints."""

import numpy as np
import pytest

from minipar.checkpoint_file import NEWEST, PREVIOUS, load
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated.links import Link
from minipar.nn import MLP
from minipar.optim import SGD, AdamW
from minipar.parallel.data.apart_by_copies import DelayedByCopies
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from minipar.train.config import TrainConfig
from minipar.train.program import train as train_run
from tests.support import sweeps
from tests.support.cases import Case, assert_all_close

OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01)}


def train(strategy, case, optimizer, steps=6, max_norm=None):
    """The losses, and the mean of the parameters at the end."""
    stepper, found = optimizer(strategy.slabs), {}
    for step in range(steps):
        inputs, targets = case.batch(step)
        batches = []
        for part in case.rows_of_parts():
            mine = np.array(part)[list(strategy.rows(len(part)))].astype(int)
            batches.append(Microbatch(inputs[mine], targets[mine], step * len(inputs) + mine))
        stepper.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(batches, 5, step)
        if max_norm is not None:
            strategy.clip_grad_norm(max_norm)
        strategy.step(stepper)
    return found | strategy.state_dict()


def copies(case, optimizer, num_copies, delay, **options):
    return Cluster(1).run(lambda comm: train(
        DelayedByCopies(case.build(), comm, num_copies, delay=delay), case, optimizer,
        **options))[0][0]


@worlds(1, 3, mpi=(3,), slow=(2, 4))
@pytest.mark.parametrize("optimizer, delay", sweeps.every(2, [
    pytest.param(optimizer, delay, id=f"{name}-{delay}")
    for name, optimizer in OPTIMIZERS.items() for delay in (0, 1, 3, 9)]))
@pytest.mark.one_in(3)
def test_it_equals_copies_in_one_process(world, delay, optimizer):
    case = Case("gpt dropout", parts=(7, 4))
    right = copies(case, optimizer, world.size, delay)
    world.run(lambda comm: assert_all_close(
        train(make_strategy("delayed", case.build(), comm, delay=delay), case, optimizer), right,
        rtol=1e-10, atol=1e-13))


@worlds(3, mpi=(3,))
def test_each_rank_clips_its_own_gradient(world):
    case, sgd = Case("mlp", parts=(7, 4)), OPTIMIZERS["sgd"]
    right = copies(case, sgd, world.size, 1, max_norm=0.1)
    world.run(lambda comm: assert_all_close(
        train(make_strategy("delayed", case.build(), comm, delay=1), case, sgd, max_norm=0.1),
        right, rtol=1e-10, atol=1e-13))


@worlds(4, mpi=())
@pytest.mark.parametrize("sizes", [{"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}],
                         ids=lambda sizes: "-".join(sizes))
@pytest.mark.one_in(3)
def test_also_beside_other_axes(world, sizes):
    case = Case("gpt deep tied", parts=(4, 4))
    right = copies(case, lambda slabs: SGD(slabs, lr=0.3), 2, 2)
    world.run(lambda comm: assert_all_close(
        train(make_strategy("delayed", case.build(), DeviceMesh(comm, **sizes), delay=2), case,
              lambda slabs: SGD(slabs, lr=0.3)), right, rtol=1e-10, atol=1e-13))


def steps_of_an_mlp(comm, name, num_steps, drain=0, momentum=0.0, **options):
    """Parameters of a rank, and bytes of all steps; `drain` more steps are corrections alone."""
    strategy = make_strategy(name, MLP([4, 7, 11]).initialize(0, np.float64), comm, **options)
    stepper = SGD(strategy.slabs, lr=0.1, momentum=momentum)
    comm.start_trace()
    for step in range(num_steps + drain):
        stepper.zero_grad()
        if step < num_steps:
            x, labels = Case("mlp", mask="full", parts=(9,)).batch(step)
            mine = np.array(strategy.rows(9))
            strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
            strategy.step(stepper)
        else:
            own, sums = strategy.arrived()
            for slab, before, total in zip(strategy.slabs, own, sums):
                slab.complete_grad()[...] = total / comm.size - before
            stepper.step()
    sent = comm.stop_trace().bytes_sent()
    return strategy.model.slabs[0].data.copy(), strategy.state_dict(), sent


@worlds(3, mpi=(3,))
def test_without_delay_it_is_data_parallelism(world):
    def body(comm):
        for momentum in (0.0, 0.9):
            late, _, _ = steps_of_an_mlp(comm, "delayed", 4, momentum=momentum, delay=0)
            right, _, _ = steps_of_an_mlp(comm, "ddp", 4, momentum=momentum)
            np.testing.assert_allclose(late, right, rtol=1e-12, atol=1e-14)
    world.run(body)


@pytest.mark.parametrize("delay", [1, 3])
def test_after_the_last_corrections_all_ranks_are_equal_to_the_mean_before(delay):
    def body(comm):
        apart, mean, _ = steps_of_an_mlp(comm, "delayed", 5, delay=delay)
        after, same, _ = steps_of_an_mlp(comm, "delayed", 5, drain=delay, delay=delay)
        return apart, after, mean, same
    found = Cluster(3).run(body)[0]
    apart, after = ([each[i] for each in found] for i in (0, 1))
    assert np.abs(apart[0] - apart[1]).max() > 1e-3
    np.testing.assert_allclose(after[1:], after[:-1], rtol=0, atol=1e-14)
    for _, _, mean, same in found:
        assert_all_close(mean, same, rtol=0, atol=1e-14)


@pytest.mark.parametrize("p", [2, 3])
def test_a_step_sends_what_a_step_of_data_parallelism_sends(p):
    late = Cluster(p).run(lambda comm: steps_of_an_mlp(comm, "delayed", 4, 2, delay=2)[2])[0]
    right = Cluster(p).run(lambda comm: steps_of_an_mlp(comm, "ddp", 4)[2])[0]
    assert sum(late) == sum(right) > 0


def test_a_message_that_needs_less_than_the_delay_costs_no_time():
    """Latency of 0.4 s, a step of about 1 s of computation: virtual seconds of ten steps."""
    def seconds(name, **options):
        def body(comm):
            strategy = make_strategy(name, MLP([4, 7, 11]).initialize(0, np.float64), comm,
                                     **options)
            stepper = SGD(strategy.slabs, lr=0.1)
            start = comm.now()
            for _ in range(10):
                stepper.zero_grad()
                comm.report_compute("work", 1_000_000, 0, 0.0)
                strategy.run_batch([Microbatch(np.ones((1, 4)), np.array([1]), np.array([0]))], 1.0)
                strategy.step(stepper)
                strategy.poll()
            return comm.now() - start
        link = Link(0.4, 1e9)
        return max(Cluster(2, latency=link.latency, bandwidth=link.bandwidth,
                           flops_per_second=1e6).run(body)[0])
    on_time, late = seconds("ddp"), seconds("delayed", delay=3)
    assert late < 11 < 14 < on_time


RUN = {"data": "digits", "hidden": "8,8", "steps": 9, "batch": 12, "seed": 3, "mesh": "dp=3",
       "strategy": "delayed", "delay": 3}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.one_in(2)
def test_a_run_that_goes_on_is_the_uninterrupted_run(no_pictures, tmp_path, optimizer):
    config = TrainConfig().updated(**RUN, optimizer=optimizer, out=tmp_path, save_every=5)
    whole = train_run(config)
    again = train_run(config.updated(out=tmp_path / "again", resume=tmp_path / PREVIOUS))
    assert whole.losses == again.losses
    one, other = (load(folder / NEWEST) for folder in (tmp_path, tmp_path / "again"))
    assert {key.split("/")[2] for key in one.others} == {"0", "1", "2"}
    for kind in ("model", "optimizer", "others"):
        found, right = getattr(one, kind), getattr(other, kind)
        assert found.keys() == right.keys()
        for key in found:
            np.testing.assert_array_equal(found[key], right[key], err_msg=key)


def test_a_negative_delay_is_refused():
    with pytest.raises(ValueError, match="delay=-1: gradients are corrected a number of steps"):
        Cluster(1).run(lambda comm: make_strategy("delayed", MLP([2, 2]).initialize(), comm,
                                                  delay=-1))
