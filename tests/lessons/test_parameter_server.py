"""The parameter server: equal to data parallelism when synchronous, bounded when stale, counted."""

import re

import numpy as np
import pytest

from lessons.parameter_server import main, pull, push, serve
from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce, broadcast
from minipar.launcher import launch
from minipar.testing.worlds import worlds

FEATURES, STEPS, LR = 7, 6, 0.05
DRAW = np.random.default_rng(1)
X, Y = DRAW.normal(size=(STEPS, 24, FEATURES)), DRAW.normal(size=(STEPS, 24))


def gradient(weights: np.ndarray, step: int, rows: slice) -> np.ndarray:
    """Of half the squared error of these rows, summed: no strategy divides."""
    x, y = X[step % STEPS, rows], Y[step % STEPS, rows]
    return x.T @ (x @ weights - y) / 24


def rows_of(worker: int, num_workers: int) -> slice:
    bounds = np.linspace(0, 24, num_workers + 1).astype(int)
    return slice(bounds[worker], bounds[worker + 1])


class Momentum:
    """SGD with momentum in place: not linear in single gradients, so that *when* to step counts."""

    def __init__(self, weights):
        self.weights, self.speed, self.num_updates = weights, np.zeros_like(weights), 0

    def __call__(self, grad):
        self.speed = 0.9 * self.speed + grad
        self.weights -= LR * self.speed
        self.num_updates += 1


def train(comm, staleness: int = 0, num_steps: int = STEPS, seconds=lambda rank, step: 0):
    """Every rank's final parameters; on the server (pulls, parameters, number of updates)."""
    weights = np.ones(FEATURES)
    if comm.rank == 0:
        update = Momentum(weights)
        pulls = serve(comm, weights, update, num_steps, staleness)
        return pulls, weights, update.num_updates
    rows = rows_of(comm.rank - 1, comm.size - 1)
    pull(comm, weights)
    for step in range(num_steps):
        grad = gradient(weights, step, rows)
        comm.report_compute("compute", seconds(comm.rank, step), 0, 0.0)
        push(comm, grad)
        pull(comm, weights)
    return weights


def one_process(num_steps: int = STEPS) -> np.ndarray:
    weights = np.ones(FEATURES)
    update = Momentum(weights)
    for step in range(num_steps):
        update(gradient(weights, step, slice(None)))
    return weights


@worlds(2, 3, 4, 8, mpi=(4,))
def test_synchronous_is_data_parallel(world):
    def body(comm):
        result = train(comm)
        served = result[1] if comm.rank == 0 else result
        weights = np.ones(FEATURES)
        update = Momentum(weights)              # data parallel: the same ranks, rank 0 idle
        for step in range(STEPS):
            mine = np.zeros(FEATURES)
            if comm.rank:
                mine = gradient(weights, step, rows_of(comm.rank - 1, comm.size - 1))
            update(all_reduce(comm, mine))
        np.testing.assert_allclose(served, weights, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(served, one_process(), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(served, broadcast(comm, served))
        if comm.rank == 0:
            assert result[2] == STEPS and all(p.step == p.slowest for p in result[0])
    world.run(body)


def test_the_server_carries_all_traffic_and_a_ring_does_not():
    num_bytes = FEATURES * 8
    for size in (2, 3, 5, 9):
        cluster = Cluster(size, trace=True)
        cluster.run(train)
        through_server = sum(m.num_bytes for m in cluster.trace.select())
        assert cluster.trace.bytes_sent(label="push") == (size - 1) * num_bytes * STEPS
        assert cluster.trace.bytes_sent(0, "pull") == (size - 1) * num_bytes * (STEPS + 1)
        assert through_server == (size - 1) * num_bytes * (2 * STEPS + 1)
        ring = Cluster(size, trace=True)
        ring.run(lambda comm: all_reduce(comm, np.ones(FEATURES * 720), algorithm="ring"))
        assert ring.trace.bytes_sent(0) <= 2 * num_bytes * 720      # of n bytes, whatever the size


def test_the_time_of_a_step_grows_with_the_number_of_workers():
    """All gradients enter through one port, all parameters leave through it."""
    def seconds(size):
        return Cluster(size, latency=0, bandwidth=FEATURES * 8).run(train)[1]
    for size in (3, 5, 9):
        # the first pulls, then in each step every push and every pull, one after the other
        assert (size - 1) * STEPS < seconds(size) <= (size - 1) * (2 * STEPS + 1)


def run_stale(staleness: int, size: int = 5, num_steps: int = 40, **cluster):
    """One worker after the other has a bad moment: 10 times as long over a step."""
    def seconds(rank, step):
        return 100 if (step + 3 * rank) % 12 else 1000
    results, total = Cluster(size, flops_per_second=1000, latency=1e-6, **cluster).run(
        lambda comm: train(comm, staleness, num_steps, seconds))
    return results[0], total


@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 7])
def test_nobody_is_further_ahead_than_the_bound_and_the_bound_is_reached(staleness):
    (pulls, _, num_updates), _ = run_stale(staleness)
    ahead = [p.step - p.slowest for p in pulls]
    assert max(ahead) == staleness and min(ahead) == 0
    assert num_updates == (40 if staleness == 0 else 160)
    assert sorted((p.worker, p.step) for p in pulls) == [(w, s) for w in range(1, 5)
                                                         for s in range(41)]


def test_staleness_hides_stragglers():
    times = [run_stale(s)[1] for s in (0, 1, 3, 40)]
    assert times == sorted(times, reverse=True) and times[0] > 1.5 * times[-1]
    assert run_stale(3)[1] == times[2]                      # to the last bit
    assert times[-1] == pytest.approx(40 * 0.1 + 4 * 0.9, rel=0.05)     # as if each were alone


def test_stale_training_learns():
    truth = np.ones(FEATURES)
    pulls, weights, _ = run_stale(3, num_steps=60)[0]
    optimum = np.linalg.lstsq(X.reshape(-1, FEATURES), Y.ravel(), rcond=None)[0]
    assert np.linalg.norm(weights - optimum) < 0.5 * np.linalg.norm(truth - optimum)


@worlds(mpi=(4,))
def test_the_bound_holds_on_real_ranks(world):
    def body(comm):
        for staleness in (1, 4):
            result = train(comm, staleness, num_steps=30)
            if comm.rank == 0:
                assert max(p.step - p.slowest for p in result[0]) <= staleness
                assert result[2] == 30 * (comm.size - 1)
    world.run(body)


def test_refusals():
    with pytest.raises(ValueError, match="at least 2 ranks"):
        Cluster(1).run(train)
    with pytest.raises(ValueError, match="rank 1 works: rank 0 calls serve"):
        Cluster(2).run(lambda comm: serve(comm, np.ones(1), print, 1) if comm.rank else None)
    with pytest.raises(ValueError, match="rank 0 serves"):
        Cluster(2).run(lambda comm: push(comm, np.ones(1)))
    with pytest.raises(ValueError, match="staleness=-1"):
        Cluster(2).run(lambda comm: train(comm, staleness=-1))


def test_the_program_shows_what_staleness_is_for(capsys):
    """Slow steps of different workers overlap, and the error ends as small."""
    launch(main, cluster=Cluster(4, flops_per_second=1e6))
    found = [re.findall(r"[\d.]+", line) for line in capsys.readouterr().out.splitlines()]
    (_, error, _, seconds, ahead), (_, late_error, _, late_seconds, late_ahead) = found
    assert float(seconds) > 2 * float(late_seconds)
    assert (ahead, late_ahead) == ("0", "2") and float(error) < 1e-2 and float(late_error) < 1e-2
