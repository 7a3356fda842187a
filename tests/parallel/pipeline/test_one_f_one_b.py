"""1F1B in one piece: equal to one process, whatever the numbers; what it holds and sends."""

from functools import cache

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.nn import GPT
from minipar.nn.chain import chain
from minipar.optim import SGD
from minipar.parallel.pipeline.one_f_one_b import OneFOneB
from minipar.parallel.pipeline.schedule.schedules import one_f_one_b, one_f_one_b_row
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.validate import find_fault
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from minipar.testing.worlds import SimulatedWorld
from tests.support.case_models import DEEP, WIDTH
from tests.support.cases import SEED, Case


def pipeline(model, comm):
    """Stages of equally many parts; a stage's width is what its first layer takes."""
    parts = chain(model)
    starts = [start for start, _ in chunk_bounds(len(parts), comm.size)]
    width = (model.config.width if isinstance(model, GPT)
             else parts[starts[comm.rank]].parameters()[0].shape[0])
    return OneFOneB(model, comm, width, starts[1:])


def train(comm, make, case):
    """Two steps: losses, and gradients and parameters of all ranks."""
    strategy = make(case.build(), comm)
    optimizer, found = SGD(strategy.slabs, lr=0.3, momentum=0.9), {}
    for step in range(2):
        inputs, targets = case.batch(step)
        batches = [Microbatch(inputs[rows], targets[rows], np.array(rows))
                   for rows in map(list, case.rows_of_parts())]
        optimizer.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(batches, SEED, step)
        found |= {f"gradient {step} of {name}": values
                  for name, values in strategy.slabs.gradients().items()}
        strategy.step(optimizer)
    return found | strategy.state_dict()


@cache
def alone(case):
    return Cluster(1).run(lambda comm: train(comm, Strategy, case))[0][0]


def case_of(model, m):
    """Microbatches of two sizes, with uneven masks."""
    return Case(model, "sgd", "uneven", tuple(2 - i % 2 for i in range(m)))


def check(world, case):
    expected = alone(case)

    def body(comm):
        found = train(comm, pipeline, case)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-10, atol=1e-13, err_msg=key)
    world.run(body)


@worlds(1, 2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.one_in(2)
def test_equals_one_process(world, model):
    check(world, case_of(model, 5))


@worlds(4, mpi=())
def test_fewer_microbatches_than_stages(world):
    for m in (1, 2, 3):
        check(world, case_of("mlp deep", m))


@pytest.mark.parametrize("m", [1, 3, 7, 8, 9, 20])
@pytest.mark.one_in(2)
def test_eight_stages_do_not_hang(m):
    check(SimulatedWorld(8), case_of("mlp deep", m))


@pytest.mark.slow
@worlds(2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("m", range(1, 10))
@pytest.mark.parametrize("model", DEEP)
def test_the_whole_product(world, model, m):
    check(world, case_of(model, m))


@worlds(3, mpi=())
@pytest.mark.parametrize("mask", ["one in the whole batch", "none in one microbatch",
                                  "none at all"])
@pytest.mark.one_in(2)
def test_whatever_the_mask(world, mask):
    check(world, Case("gpt deep tied", mask=mask, parts=(2, 1, 2, 1)))


@worlds(3, mpi=())
def test_an_empty_microbatch(world):
    check(world, Case("mlp deep", parts=(3, 0, 2)))


def test_the_row_is_that_of_the_picture():
    rows = [" ".join(str(action)[1:] for action in one_f_one_b_row(s, 3, 4)) for s in range(3)]
    assert rows == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3",
                    "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert simulate(one_f_one_b(3, 4), Times(1, 1, 0)).makespan() == 12


def test_the_product_plays_the_same_rows():
    for p in range(1, 7):
        for m in range(1, 13):
            rows = [one_f_one_b_row(stage, p, m) for stage in range(p)]
            assert rows == one_f_one_b(p, m) and find_fault(rows, [*range(p)], m) is None


def batches_of(m):
    """Each with arrays of its own, so that the ledger sees which are alive."""
    draw = np.random.default_rng(0)
    return [Microbatch(draw.integers(0, 11, (2, 6)), draw.integers(0, 11, (2, 6)), np.arange(2))
            for _ in range(m)]


@worlds(1, 2, 4, mpi=(2, 4))
@pytest.mark.one_in(2)
def test_activations_in_flight(world):
    """By the ledger, exactly those of min(p - s, m) microbatches."""
    def peak(strategy, m):
        batches = batches_of(m)
        for slab in strategy.slabs:
            slab.zero_grad()
        ledger = Ledger(p for slab in strategy.slabs for p in slab.parameters)
        with ledger.recording():
            strategy.run_batch(batches, 12.0 * m)
        assert ledger.live == 0
        return ledger.peak_of["activations"]

    def body(comm):
        strategy = pipeline(Case("gpt deep untied").build(), comm)
        one = peak(strategy, 1)
        for m in (2, 3, 7):
            assert peak(strategy, m) == min(comm.size - comm.rank, m) * one
    world.run(body)


@worlds(1, 2, 4, mpi=(2, 4))
def test_an_activation_and_a_gradient_over_each_boundary(world):
    m, size = 5, 2 * 6 * WIDTH * 8

    def body(comm):
        strategy = pipeline(Case("gpt deep untied").build(), comm)
        comm.start_trace()
        strategy.run_batch(batches_of(m), 60.0)
        trace = comm.stop_trace()
        neighbours = (comm.rank > 0) + (comm.rank < comm.size - 1)
        assert trace.num_sent() == m * neighbours
        assert trace.bytes_sent() == m * neighbours * size
    world.run(body)


@pytest.mark.parametrize("p, m", [(2, 8), (3, 5), (4, 8)])
@pytest.mark.one_in(2)
def test_it_takes_as_long_as_the_schedule(p, m):
    """By the times that its stages take for one microbatch: nothing else is waited for."""
    def run(comm, m):
        strategy = pipeline(Case("gpt deep untied").build(), comm)
        comm.start_trace()
        metered(lambda comm: strategy.run_batch(batches_of(m), 12.0 * m))(comm)
        return comm.stop_trace().named_spans()

    def seconds(spans):
        """Of F, and of B."""
        forward = sum(s.end - s.start for s in spans if s.name.endswith(" forward"))
        return Times(forward, sum(s.end - s.start for s in spans) - forward, 0)
    cluster = Cluster(p, latency=0, bandwidth=1e18)
    times = [seconds(spans) for spans in cluster.run(lambda comm: run(comm, 1))[0]]
    rows = cluster.run(lambda comm: run(comm, m))[0]
    assert max(spans[-1].end for spans in rows) == pytest.approx(
        simulate(one_f_one_b(p, m), times).makespan(), rel=1e-9)


@pytest.mark.parametrize("p, width, sentence", [
    (9, WIDTH, "a model of 8 parts has 1 to 8 stages, not 9: take fewer ranks"),
    (2, WIDTH + 1, "sizes and dtypes must be equal")])
def test_what_does_not_fit_is_refused(p, width, sentence):
    def body(comm):
        OneFOneB(Case("gpt deep tied").build(), comm, width).run_batch(batches_of(2), 24.0)
    with pytest.raises(ValueError, match=sentence):
        Cluster(p).run(body)


def test_shared_gradients_are_not_summed_twice():
    def body(comm):
        strategy = pipeline(Case("gpt deep tied").build(), comm)
        for _ in range(2):
            strategy.run_batch(batches_of(2), 24.0)
    with pytest.raises(ValueError, match="reduced already.*call zero_grad"):
        Cluster(2).run(body)
