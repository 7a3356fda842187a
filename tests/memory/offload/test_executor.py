"""Decisions being executed: peak bytes and virtual time as predicted, gradients bit for bit."""

import math
from functools import cache

import numpy as np
import pytest

from minipar.autograd import Tensor, backward, no_grad
from minipar.backend.mapped_file import MappedFile
from minipar.backend.shape_array import ShapeArray
from minipar.comm import Cluster
from minipar.comm.simulated.copy_stream import COPY_IN, COPY_OUT, copy_streams
from minipar.comm.simulated.links import Link
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.memory.offload.executor import DecisionExecutor, apply_decisions, parts_and_loss
from minipar.memory.offload.search import best_decisions
from minipar.memory.offload.timeline import (
    COMPUTE,
    KEEP,
    OFFLOAD,
    RECOMPUTE,
    WAITING,
    OffloadMachine,
    possible_decisions,
    simulate_step,
    step_cost,
)
from minipar.memory.remat.profile import profile_parts
from minipar.nn.step_context import training_step
from tests.support.planned import KINDS, batch_of, model_of

ROWS = 3.0


@cache
def costs_with_loss(kind):
    """The profile of the parts; the loss is the last."""
    model, (x, targets) = model_of(kind), batch_of(kind)
    with training_step(1, 2, range(3)):
        return profile_parts(parts_and_loss(model, targets, ROWS), x,
                             parameters=model.parameters())


def executed(kind, decisions, machine):
    """Virtual seconds, bytes at the peak, spans and gradients of a step."""
    cluster = Cluster(1, trace=True, flops_per_second=machine.flops_per_second,
                      memory_bandwidth=math.inf)

    def main(comm):
        model, (x, targets) = model_of(kind), batch_of(kind)
        how = DecisionExecutor(decisions, MappedFile().empty, model.parameters(),
                        *copy_streams(comm, Link(0.0, machine.bytes_per_second)), machine.ahead)
        apply_decisions(model, how)
        ledger = Ledger(model.parameters())
        with ledger.recording(), training_step(1, 2, range(3)):
            backward(model.loss(x, targets, ROWS))
        assert ledger.live == 0 and ledger.live_of["offloaded"] == 0
        return ledger.peak, [p.grad for p in model.parameters()]
    [(peak, gradients)], seconds = simulate(main, cluster)
    return seconds, peak, cluster.trace.named_spans(), gradients


def check(kind, decisions, machine):
    """Every lane runs as predicted."""
    costs = costs_with_loss(kind)
    seconds, peak, spans, gradients = executed(kind, decisions, machine)
    assert (pytest.approx(seconds, rel=1e-12), peak) == step_cost(decisions, costs, machine)
    steps = simulate_step(decisions, costs, machine)
    for lane in (COPY_OUT, COPY_IN):
        copies = [step for step in steps if step.lane == lane]
        busy = [span for span in spans if span.name == lane]
        total = sum(span.end - span.start for span in busy)
        assert total == pytest.approx(sum(copy.end - copy.start for copy in copies), rel=1e-9)
        for copy in copies:             # which is that of one or several storages
            assert any(span.start == pytest.approx(copy.start, rel=1e-9) for span in busy)
            assert any(span.end == pytest.approx(copy.end, rel=1e-9) for span in busy)
    for grad, expected in zip(gradients, plain_gradients(kind)):
        np.testing.assert_array_equal(grad, expected)


@cache
def plain_gradients(kind):
    count = len(costs_with_loss(kind).parts)
    return executed(kind, (KEEP,) * count, OffloadMachine(1e9, 1e9))[-1]


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(2)
def test_any_decisions_take_what_is_predicted(kind, ahead):
    rng, parts = np.random.default_rng(ahead), costs_with_loss(kind).parts
    for speed in (1e6, 1e8):
        decisions = [str(rng.choice(possible_decisions(part))) for part in parts[:-1]] + [KEEP]
        check(kind, decisions, OffloadMachine(1e9, speed, ahead))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_decisions_take_what_is_predicted_often(kind):
    rng, parts = np.random.default_rng(5), costs_with_loss(kind).parts
    for _ in range(60):
        decisions = [str(rng.choice(possible_decisions(part))) for part in parts[:-1]] + [KEEP]
        check(kind, decisions, OffloadMachine(1e9, float(10**rng.uniform(5, 10)),
                                              int(rng.integers(1, 5))))


@pytest.mark.parametrize("speed, most", [(1e10, OFFLOAD), (1e5, RECOMPUTE)])
def test_what_was_chosen_fits_and_takes_what_was_promised(speed, most):
    costs, machine = costs_with_loss("gpt"), OffloadMachine(1e9, speed)
    seconds, kept = step_cost((KEEP,) * len(costs.parts), costs, machine)
    choice = best_decisions(costs, kept // 2, machine)
    assert choice.peak <= kept // 2
    assert choice.decisions.count(most) >= 3
    assert executed("gpt", choice.decisions, machine)[:2] == (
        pytest.approx(choice.seconds, rel=1e-12), choice.peak)
    assert choice.seconds <= (1.1 if speed > 1e6 else 1.4) * seconds


def test_a_slow_link_is_the_bound():
    costs, machine = costs_with_loss("gpt"), OffloadMachine(1e9, 1e6)
    decisions = [OFFLOAD] * (len(costs.parts) - 1) + [KEEP]
    steps = simulate_step(decisions, costs, machine)
    for lane in (COPY_OUT, COPY_IN):
        copies = [step for step in steps if step.lane == lane]
        assert copies[0].num_bytes > 0
        assert all(a.end == b.start for a, b in zip(copies, copies[1:])), "never idle"
    computing = [step for step in steps if step.lane == COMPUTE]
    idle = sum(step.end - step.start for step in computing if step.kind == WAITING)
    assert idle > 0.9 * computing[-1].end
    assert all(a.end == b.start for a, b in zip(computing, computing[1:]))


def test_evaluation_moves_nothing():
    model, batch = model_of("gpt", dropout=0.0), batch_of("gpt")
    expected = model.loss(*batch).data
    apply_decisions(model, DecisionExecutor([OFFLOAD] * 8, None))
    with no_grad():
        np.testing.assert_array_equal(model.loss(*batch).data, expected)


def test_arrays_without_numbers_stay():
    model = model_of("gpt", array=ShapeArray((), np.float32))
    apply_decisions(model, DecisionExecutor([OFFLOAD] * 8, None, model.parameters()))
    x = ShapeArray((3, 16), np.int64)
    with training_step(1, 2, range(3)):
        assert model.loss(x, x, ROWS).shape == ()


def test_decisions_of_other_parts_are_refused():
    model = apply_decisions(model_of("gpt"), DecisionExecutor([KEEP] * 3, None))
    with pytest.raises(ValueError, match="3 decisions for 8 parts: give one for each"):
        model.loss(*batch_of("gpt"))


def test_views_of_what_came_back_are_no_storages_of_their_own():
    """A part that is recomputed from an input that came back saves that very input."""
    x, ledger = Tensor(np.ones((4, 3)), requires_grad=True), Ledger()
    how = DecisionExecutor([KEEP, "offload input"], MappedFile().empty)
    with ledger.recording():
        y = how.run_last(lambda x: x * x, how.run_first([lambda x: x * 2.0], x))
        backward(y, np.ones((4, 3)))
    assert ledger.peak == 4 * 3 * 8
    np.testing.assert_array_equal(x.grad, 8.0)
