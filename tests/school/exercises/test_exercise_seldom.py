"""Exercises local_sgd, elastic_averaging and streaming: ranks that train apart, simulated."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.optim import SGD
from minipar.parallel.data.diloco import DiLoCo
from minipar.parallel.data.elastic_averaging import ElasticAveraging
from minipar.parallel.data.local_sgd import LocalSGD
from tests.support.agreement import check_same
from tests.support.given_gradients import GivenGradients, step_along

LR, MOMENTUM, STEPS = 0.5, 0.8, 6


def gradient(step, rank):
    return np.random.default_rng((step, rank)).standard_normal(4)


def steps_of(comm, kind, **options):
    """(where a rank began, its w, momentum and bytes after each step, the strategy)."""
    strategy = kind(GivenGradients({"w": (4,)}), comm, **options)
    optimizer, (slab,) = SGD(strategy.slabs, lr=LR, momentum=MOMENTUM), strategy.slabs
    [velocity] = optimizer.states[0].values()
    start, found = slab.data.copy(), []
    for step in range(STEPS):
        comm.start_trace()
        step_along(strategy, optimizer, {"w": gradient(step, comm.rank)})
        found.append((slab.data.copy(), velocity.copy(),
                      comm.stop_trace().bytes_sent(comm.rank), strategy.consensus()[0].copy()))
    return start, found


def local_sgd_by_definition(p, start, every, local_states, first):
    """All ranks in one process: w and v (p, 4) after each step."""
    w, v = np.tile(start, (p, 1)), np.zeros((p, 4))
    for step in range(STEPS):
        v = MOMENTUM * v + [gradient(step, rank) for rank in range(p)]
        w = w - LR * v
        if (step + 1) % every == 0 or step < first:
            w = np.tile(w.mean(0), (p, 1))
            v = {"kept": v, "averaged": np.tile(v.mean(0), (p, 1)), "reset": 0 * v}[local_states]
        yield w, v


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("local_states", ["kept", "averaged", "reset"])
@pytest.mark.parametrize("every, first", [(1, 0), (3, 0), (4, 2)])
def test_local_sgd_averages_after_every_few_steps(p, local_states, every, first):
    ranks = Cluster(p).run(lambda comm: steps_of(
        comm, LocalSGD, every=every, local_states=local_states, average_first=first))[0]
    right = [*local_sgd_by_definition(p, ranks[0][0], every, local_states, first)]
    for rank, (_, found) in enumerate(ranks):
        for step, ((w, v, _, _), (all_w, all_v)) in enumerate(zip(found, right), start=1):
            where = f"every={every}, {first} first, rank {rank} of {p}, after step {step}: "
            check_same(w, all_w[rank], where + "w")
            check_same(v, all_v[rank], f"{where}momentum, {local_states}")


@pytest.mark.parametrize("local_states, messages", [("kept", 1), ("averaged", 2), ("reset", 1)])
def test_local_sgd_sends_nothing_in_between(local_states, messages):
    for _, found in Cluster(2).run(lambda comm: steps_of(
            comm, LocalSGD, every=3, local_states=local_states))[0]:
        sent = [num_bytes for _, _, num_bytes, _ in found]
        assert sent == [0, 0, messages * 32] * 2, \
            f"expected 0, 0, then {messages * 32} bytes of each rank (momentum {local_states}), " \
            f"got {sent}"


def elastic_by_definition(p, start, every, pull):
    """All ranks in one process: w (p, 4) and the centre after each step."""
    w, v, centre = np.tile(start, (p, 1)), np.zeros((p, 4)), start
    for step in range(STEPS):
        distance = w - centre if (step + 1) % every == 0 else 0 * w
        v = MOMENTUM * v + [gradient(step, rank) for rank in range(p)]
        w = w - LR * v - pull * distance
        centre = centre + pull * distance.sum(0)
        yield w, centre


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 3])
def test_elastic_averaging_pulls_ranks_and_centre(p, every):
    ranks = Cluster(p).run(lambda comm: steps_of(comm, ElasticAveraging, every=every, pull=0.3))[0]
    right = [*elastic_by_definition(p, ranks[0][0], every, 0.3)]
    for rank, (_, found) in enumerate(ranks):
        for step, ((w, _, _, centre), (all_w, middle)) in enumerate(zip(found, right), start=1):
            where = f"every={every}, rank {rank} of {p}, after step {step}: "
            check_same(w, all_w[rank], where + "w")
            check_same(centre, middle, where + "the centre")


def test_elastic_averaging_sends_one_sum():
    for _, found in Cluster(2).run(lambda comm: steps_of(comm, ElasticAveraging, every=2))[0]:
        sent = [num_bytes for _, _, num_bytes, _ in found]
        assert sent == [0, 32] * 3, f"expected 0, then 32 bytes, of each rank, got {sent}"


def streaming_by_definition(p, start, every, fragments, delay, mix):
    """All ranks in one process: w (p, 4) and θ after each step; η = 0.7, μ = 0.9."""
    w, velocity, theta, outer = np.tile(start, (p, 1)), np.zeros((p, 4)), start.copy(), np.zeros(4)
    bounds, period, deltas = chunk_bounds(4, fragments), every // fragments, {}

    def part(step):
        return slice(*bounds[(step // period - 1) % fragments])
    for t in range(1, STEPS + 1):
        velocity = MOMENTUM * velocity + [gradient(t - 1, rank) for rank in range(p)]
        w = w - LR * velocity
        if (t + delay) % period == 0:
            deltas[t + delay] = (theta - w).mean(0)[part(t + delay)]
        if t % period == 0:
            k, delta = part(t), deltas[t]
            outer[k] = 0.9 * outer[k] + delta
            theta[k] -= 0.7 * (delta + 0.9 * outer[k])
            w[:, k] = (1 - mix) * theta[k] + mix * w[:, k]
        yield w.copy(), theta.copy()


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("every, fragments, delay, mix", [
    (1, 1, 0, 0.0), (3, 1, 0, 0.0), (2, 2, 0, 0.0), (4, 2, 1, 0.25), (3, 1, 2, 0.5)])
def test_fragments_take_outer_steps_in_turn(p, every, fragments, delay, mix):
    def body(comm):
        strategy = DiLoCo(GivenGradients({"w": (4,)}), comm, every, fragments=fragments,
                          delay=delay, mix=mix)
        optimizer, (slab,) = SGD(strategy.slabs, lr=LR, momentum=MOMENTUM), strategy.slabs
        found = [slab.data.copy()]
        for step in range(STEPS):
            step_along(strategy, optimizer, {"w": gradient(step, comm.rank)})
            found.append((slab.data.copy(), strategy.outer["theta"][0].copy()))
        return found
    ranks = Cluster(p).run(body)[0]
    right = [*streaming_by_definition(p, ranks[0][0], every, fragments, delay, mix)]
    for rank, (_, *found) in enumerate(ranks):
        for step, ((w, theta), (all_w, centre)) in enumerate(zip(found, right), start=1):
            where = f"every={every}, fragments={fragments}, delay={delay}, mix={mix}, " \
                    f"rank {rank} of {p}, after step {step}: "
            check_same(theta, centre, where + "θ")
            check_same(w, all_w[rank], where + "w")


@pytest.mark.parametrize("fragments, right", [(1, [0, 32, 0, 32, 0, 32]), (2, [16] * 6)])
def test_fragments_send_less_at_once(fragments, right):
    for _, found in Cluster(2).run(lambda comm: steps_of(
            comm, DiLoCo, every=2, fragments=fragments))[0]:
        sent = [num_bytes for _, _, num_bytes, _ in found]
        assert sent == right, f"fragments={fragments}: expected {right} bytes of each rank, " \
                              f"got {sent}"
