"""The executor: its messages, its memory, what it records; what it refuses."""


from itertools import pairwise

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.launcher import metered
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.cost import pipelines as predict
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.metrics import in_flight, num_messages
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.schedules import loop_placement
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds

B, WIDTH = 4, 8


def mlp_batches(m):
    draw = np.random.default_rng(0)
    return [Microbatch(draw.standard_normal((B, WIDTH)), draw.integers(0, WIDTH, B), np.arange(B))
            for _ in range(m)]


def mlp():
    return MLP([WIDTH] * 9).initialize(0, np.float64)


def pipeline(comm, name, **options):
    return Strategy(mlp(), DeviceMesh(comm, pp=comm.size), schedule=name, **options)


def on_two(comm, schedule):
    return Strategy(mlp(), DeviceMesh(comm, pp=2), schedule=schedule)


def observed(comm, name, m, **options):
    """(pipeline, timeline of its second batch)."""
    strategy, batches = pipeline(comm, name, **options), mlp_batches(m)
    strategy.forward_backward(batches)
    for slab in strategy.slabs:
        slab.zero_grad()            # two directions sum gradients over ranks, as shared weights do
    comm.start_trace()
    metered(lambda comm: strategy.forward_backward(batches))(comm)
    return strategy, strategy.pipeline.timeline(comm.stop_trace())


@worlds(1, 2, 4, mpi=(2, 4))
@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_and_bytes_are_the_formula_s(world, name):
    """2 m b h elements over each boundary between ranks, of which interleaving makes more."""
    m = 4

    def body(comm):
        strategy, timeline = observed(comm, name, m)
        if comm.rank:
            return
        boundaries = sum(a != b for a, b in pairwise(strategy.stages.placement))
        if SCHEDULES[name].num_stages == 1:
            assert boundaries == comm.size - 1
        elif SCHEDULES[name].any_stages:
            assert boundaries == 2 * comm.size - 1 or comm.size == 1
        assert len(timeline.messages) == num_messages(strategy.stages.placement, m)
        assert sum(message.num_bytes for message in timeline.messages) \
            == 2 * m * B * WIDTH * boundaries * 8
    world.run(body)


@worlds(1, 2, 4, mpi=(2, 4))
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.one_in(2)
def test_what_it_did_is_the_schedule(world, name):
    """Recorded in its order; as many microbatches in flight as the formula says."""
    def body(comm):
        strategy, timeline = observed(comm, name, 8)
        row = strategy.pipeline.rank_schedule(8).row
        assert [interval.action for interval in strategy.pipeline.intervals] == row
        assert strategy.pipeline.most_in_flight == max(in_flight(row))
        formula = predict.in_flight(name, comm.rank, comm.size, 8,
                                    len(strategy.stages) // comm.size)
        assert formula in (None, strategy.pipeline.most_in_flight)
        if comm.rank == 0:
            schedule, _ = make_schedule(name, comm.size, 8)
            assert [[i.action for i in timeline.row(r)] for r in range(comm.size)] == schedule
            ends = {(i.rank, *i.action): i.end for i in timeline.intervals}
            for message in timeline.messages:
                stage, kind, i = message.label[0], message.label[1], message.label[2]
                assert message.end >= ends[message.source, kind, int(stage), int(i)]
    world.run(body)


@worlds(4, mpi=(4,))
def test_the_ranks_of_a_timeline_are_the_pipeline_s(world):
    """Two pipelines, of ranks 0 and 2 and of 1 and 3: in each it is 0 that sends to 1."""
    def body(comm):
        _, timeline = observed(comm.split(comm.rank % 2), "1f1b", 2)
        if comm.rank < 2:
            assert {i.rank for i in timeline.intervals} == {0, 1}
            assert sorted((m.source, m.dest, m.label) for m in timeline.messages) == [
                (0, 1, "0F0"), (0, 1, "0F1"), (1, 0, "1B0"), (1, 0, "1B1")]
    world.run(body)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 8), (3, 5), (4, 8)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_simulated_runs_take_as_long_as_predicted(name, p, m):
    """From the times of their actions, exactly; and B is as long as I and W."""
    cluster = Cluster(p, latency=0, bandwidth=1e18)
    (strategy, timeline), *_ = cluster.run(lambda comm: observed(comm, name, m))[0]
    seconds = {}
    for i in timeline.intervals:
        seconds.setdefault((i.stage, i.kind), i.end - i.start)
    times = [Times(seconds[s, "F"], seconds.get((s, "I"), seconds.get((s, "B"))),
                   seconds.get((s, "W"), 0)) for s in range(len(strategy.stages))]
    schedule, placement = make_schedule(name, p, m)
    predicted = simulate(schedule, times, placement)
    assert timeline.makespan() == pytest.approx(predicted.makespan(), rel=1e-9)
    first, begun = timeline.first(), sorted(predicted.intervals)
    for ours, theirs in zip(sorted(timeline.intervals), begun):
        assert ours.start - first == pytest.approx(theirs.start, rel=1e-6, abs=1e-12)


def test_weights_wait_for_w():
    """I is the gradient of the input alone, W that of the weights: together they are B."""
    def seconds(name):
        timeline = Cluster(2).run(lambda comm: observed(comm, name, 2))[0][0][1]
        return {(i.stage, i.kind): i.end - i.start for i in timeline.intervals}
    split, whole = seconds("zb_h1"), seconds("1f1b")
    for stage in range(2):
        assert split[stage, "I"] > 0 and split[stage, "W"] > 0
        assert split[stage, "I"] + split[stage, "W"] == pytest.approx(whole[stage, "B"], rel=1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.one_in(2)
def test_activations_are_those_of_the_microbatches_in_flight(name):
    """By the ledger: exactly, as all saved arrays go with their microbatch's B (of ZB-H1, some
    with I)."""
    config = GPTConfig(11, context=6, num_layers=4, num_heads=2, width=WIDTH)
    draw = np.random.default_rng(0)

    def body(comm, m):
        strategy = Strategy(GPT(config).initialize(), DeviceMesh(comm, pp=4), schedule=name)
        batches = [Microbatch(draw.integers(0, 11, (2, 6)), draw.integers(0, 11, (2, 6)),
                              np.arange(2)) for _ in range(m)]
        strategy.forward_backward(batches)
        for slab in strategy.slabs:
            slab.zero_grad()
        ledger = Ledger(p for p in strategy.model.parameters() if p.initialized)
        with ledger.recording():
            strategy.forward_backward(batches)
        assert ledger.live == 0
        return ledger.peak_of["activations"], strategy.pipeline.most_in_flight
    one = Cluster(4).run(lambda comm: body(comm, 1))[0]
    many = Cluster(4).run(lambda comm: body(comm, 6))[0]
    for rank, ((each, _), (peak, number)) in enumerate(zip(one, many)):
        assert number == {"gpipe": 6, "1f1b": 4 - rank, "zb_h1": 4}[name]
        assert peak == number * each if name != "zb_h1" else peak <= number * each


def test_a_schedule_of_one_s_own():
    """Microbatches in another order on every rank: each message finds its receive."""
    table = ("0F0,0F1,0F2,0B1,0B0,0B2\n"
             "1F2,1F0,1F1,1B1,1B2,1B0\n")

    def body(comm, schedule):
        strategy = on_two(comm, lambda m: (schedule, loop_placement(2)))
        losses = [strategy.forward_backward(mlp_batches(3)) for _ in range(1)]
        return losses, strategy.slabs[0].grad.copy()
    swapped = Cluster(2).run(lambda comm: body(comm, from_csv(table)))[0]
    plain = Cluster(2).run(lambda comm: body(comm, make_schedule("gpipe", 2, 3)[0]))[0]
    for (losses, grad), (expected, expected_grad) in zip(swapped, plain):
        np.testing.assert_allclose(losses, expected, rtol=1e-14)
        np.testing.assert_allclose(grad, expected_grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("table", "sentence"), [
    ("0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n", "1B0 .* comes before 1F0"),
    ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock, a circle of ranks that wait"),
    ("0F0,0F1,0B0,0B1\n1F0,1B0\n", "1B1 is missing on rank 1"),
    ("0F0,0F1,0B0,0B1\n", "a schedule for 1 ranks .* does not fit 2 ranks")])
def test_what_would_not_work_is_refused_before_it_starts(table, sentence):
    def body(comm):
        strategy = on_two(comm, lambda m: (from_csv(table), loop_placement(2)))
        strategy.forward_backward(mlp_batches(2))
    with pytest.raises(ValueError, match=sentence):
        Cluster(2).run(body)


def test_shapes_are_told_once():
    """Control messages of a shape of inputs come with its first batch only."""
    def headers(comm, strategy, batches):
        comm.start_trace()
        strategy.forward_backward(batches)
        return sum(m.num_bytes == 64 for m in comm.stop_trace().select(label="control"))

    def body(comm):
        strategy, batches = pipeline(comm, "1f1b"), mlp_batches(3)
        shorter = [batches[0], Microbatch(*(array[:2] for array in batches[1]))]
        found = [headers(comm, strategy, b) for b in (batches, batches, shorter, shorter)]
        assert found == ([3, 0, 1, 0] if comm.rank < comm.size - 1 else [0] * 4)
    Cluster(3).run(body)


def test_shared_gradients_are_not_summed_twice():
    config = GPTConfig(11, context=6, num_layers=2, num_heads=2, width=WIDTH)

    def body(comm):
        strategy = Strategy(GPT(config).initialize(), DeviceMesh(comm, pp=2))
        ids = np.zeros((1, 6), int)
        for _ in range(2):
            strategy.forward_backward([Microbatch(ids, ids, np.arange(1))])
    with pytest.raises(ValueError, match="reduced already.*call zero_grad"):
        Cluster(2).run(body)
