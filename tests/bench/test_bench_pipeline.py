"""The benchmark of pipelines compares the same work, and its prediction is the formula."""

from functools import partial

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.launcher import metered
from minipar.parallel.pipeline.schedule.metrics import bubble
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.bench.on_ranks import bubbles, pipeline
from tests.bench.on_ranks.pipeline import BATCH, NUM_MICROBATCHES, SIZES


def microbatches(rows=2):
    draw = np.random.default_rng(0)
    return [Microbatch(draw.standard_normal((rows, SIZES[0])).astype(np.float32),
                       draw.integers(SIZES[-1], size=rows), np.arange(rows))
            for _ in range(NUM_MICROBATCHES)]


@worlds(2, mpi=(2,))
def test_two_ranks_do_what_one_does(world):
    def body(comm):
        losses = [pipeline.make_step(strategy, microbatches()) for strategy in (
            pipeline.make_pipeline(comm), Strategy(pipeline.make_model(), comm.split(comm.rank)))]
        first, second = (step() for step in losses)
        assert first == pytest.approx(second, rel=1e-5)
    world.run(body)


def test_stages_without_messages_are_those_of_the_pipeline():
    def body(comm):
        ours, stage = pipeline.make_pipeline(comm), pipeline.Stage(comm.rank, microbatches())
        assert [p.shape for p in stage.model.parameters()] == [
            p.shape for slab in ours.slabs for p in slab.parameters]
        stage.step()
        assert len(stage.seconds) == 1 and min(stage.seconds[0]) > 0
        assert all(p.grad.any() for p in stage.model.parameters())
    Cluster(2).run(body)


def test_prediction_of_equal_stages_is_the_formula():
    forward, back, rest, m = 1.0, 2.0, 0.5, NUM_MICROBATCHES
    stages = [np.array([forward, back, rest])] * 2
    assert pipeline.predict(stages) == pytest.approx((m + 2 - 1) * (forward + back) + rest)


def test_rows_say_how_near_it_comes():
    seconds = {"1f1b": 2.0, "alone": 3.0}
    rows = pipeline.report(seconds, {"apart": 1.9, "together": 1.7})
    assert [row.ratio for row in rows] == [None, 1.5, 0.95, 0.85]
    assert [row.met for row in rows] == [None, None, True, False]
    rows = pipeline.report({**seconds, pipeline.THEIRS: 2.4}, {"apart": 1.9, "together": 1.7})
    assert rows[0].ratio == 1.2 and rows[0].met
    assert f"{BATCH / 2:,.0f} samples/s" in rows[0].ours


@pytest.mark.parametrize("kind", bubbles.SCHEDULES.values())
def test_predicted_timeline_has_the_formulas_bubble(kind):
    m = bubbles.NUM_MICROBATCHES
    measured = simulate(make_schedule(kind, 2, m)[0], [Times(1, 1, 1), Times(2, 2, 1.5)])
    assert bubble(measured).of_total > 0.2
    found = bubbles.predicted(kind, measured)
    assert bubble(found).of_total == pytest.approx(1 / (m + 1))
    assert found.makespan() == pytest.approx((m + 1) * (1.5 + 2.75))


def test_bubbles_are_measured_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(bubbles, "interleave", lambda steps, rounds, before: [
        step() for _ in range(rounds) for step in steps.values()])
    monkeypatch.setattr(bubbles, "make_batch", partial(small_batch, bubbles.make_batch))
    (rows, _), _ = Cluster(2).run(metered(
        lambda comm: [*bubbles.measure(comm, 1, tmp_path / "new")]))
    assert [row.theirs for row in rows] == ["formula 11.1%"] * 2
    assert (tmp_path / "new" / "bubbles.png").stat().st_size > 10_000


def small_batch(make, num_samples, config):
    """A batch by `make`, whose sequences are cut to 4 tokens."""
    return [array[:, :4] for array in make(num_samples, config)]
