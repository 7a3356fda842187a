"""DiLoCo: streaming by its definition in one process, its special cases, its bytes, what broke."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.optim import SGD
from minipar.parallel.cost.data_parallel import all_reduce_elements
from minipar.parallel.registry import make_strategy
from minipar.testing import worlds
from tests.support.given_gradients import GivenGradients, step_along

SHAPES, N, STEPS, LR = {"a": (40,), "b": (40,), "c": (20,)}, 100, 13, 0.1


def gradient(rank, step):
    return np.random.default_rng((rank, step)).standard_normal(N)


def by_name(flat):
    return dict(zip(SHAPES, np.split(flat, [40, 80])))


def streaming(p, start, every, fragments=1, delay=0, mix=0.0, lr=0.7, momentum=0.9):
    """θ and the parameters of p ranks after each step, in one process."""
    theta, velocity, w = start.copy(), np.zeros(N), np.tile(start, (p, 1))
    period, taken = every // fragments, {}
    for step in range(1, STEPS + 1):
        for rank in range(p):
            w[rank] -= LR * gradient(rank, step)
        if (step + delay) % period == 0:
            taken[step + delay] = np.mean(theta - w, axis=0)
        if step in taken:
            part = slice(*chunk_bounds(N, fragments)[(step // period - 1) % fragments])
            delta = taken[step][part]
            velocity[part] = momentum * velocity[part] + delta
            theta[part] -= lr * (delta + momentum * velocity[part])
            w[:, part] = (1 - mix) * theta[part] + mix * w[:, part]
        yield theta.copy(), w.copy()


def run(comm, look=lambda strategy: None, steps=STEPS, name="diloco", **options):
    """What `look` sees after each step."""
    strategy = make_strategy(name, GivenGradients(SHAPES), comm, **options)
    optimizer, seen = SGD(strategy.slabs, lr=LR), []
    for step in range(1, steps + 1):
        step_along(strategy, optimizer, by_name(gradient(comm.rank, step)))
        seen.append(look(strategy))
    return seen


def flat_of(state):
    return np.concatenate([*state.values()])


@worlds(1, 3, mpi=(3,))
@pytest.mark.parametrize("options", [
    {"every": 3}, {"every": 4, "fragments": 2, "delay": 1, "mix": 0.5},
    {"every": 9, "fragments": 3, "delay": 2}, {"every": 4, "fragments": 4, "mix": 1.0}], ids=str)
def test_streaming_by_its_definition(world, options):
    """All ranks send the fragments in one order, whatever is under way; θ is that of all."""
    start = flat_of(GivenGradients(SHAPES).state_dict())
    right = [*streaming(world.size, start, **options)]

    def body(comm):
        found = run(comm, lambda strategy: (strategy.outer["theta"][0].copy(),
                                            strategy.slabs[0].data.copy()), **options)
        for (theta, w), (right_theta, right_w) in zip(found, right, strict=True):
            np.testing.assert_allclose(theta, right_theta, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(w, right_w[comm.rank], rtol=1e-12, atol=1e-13)
    world.run(body)


def test_without_outer_momentum_and_with_rate_1_parameters_are_averaged():
    def body(comm):
        def look(strategy):
            return flat_of(strategy.state_dict())
        np.testing.assert_allclose(
            run(comm, look, every=3, outer_lr=1.0, outer_momentum=0.0),
            run(comm, look, name="local_sgd", every=3), rtol=1e-12, atol=1e-13)
    Cluster(3).run(body)


def test_every_number_is_averaged():
    """Sizes 40, 40, 20 in fragments whose borders lie within tensors."""
    def body(comm):
        return run(comm, lambda strategy: strategy.slabs[0].data.copy(), every=6, fragments=3)
    found = np.array(Cluster(2).run(body)[0])           # (ranks, steps, N)
    is_equal = (found[0] == found[1])
    for k, (start, stop) in enumerate(chunk_bounds(N, 3)):
        assert is_equal[2 * k + 1, start:stop].all()
    assert not is_equal[0].any()


def test_the_loss_falls_and_mix_counts():
    """Old minus new is a gradient: new minus old would climb."""
    def body(comm, mix):
        model = GivenGradients({"w": (8,)})
        strategy = make_strategy("diloco", model, comm, every=4, fragments=2, mix=mix)
        optimizer, distances = SGD(strategy.slabs, lr=0.1), []
        for _ in range(40):
            step_along(strategy, optimizer, {"w": strategy.slabs[0].data - 1})
            distances.append(np.abs(strategy.state_dict()["w"] - 1).max())
        return distances
    falls, alone = (Cluster(2).run(lambda comm, mix=mix: body(comm, mix))[0][0]
                    for mix in (0.0, 0.9))
    assert falls[-1] < falls[0] / 5
    assert np.abs(np.subtract(falls, alone)).max() > 1e-3


def test_steps_left_over_take_the_outer_step_early():
    """After 8 of 12 steps the run gives what a run with an exchange every 8 steps gives."""
    def body(comm):
        def look(strategy):
            return flat_of(strategy.state_dict())
        early = run(comm, look, steps=8, every=12)
        np.testing.assert_allclose(early[-1], run(comm, look, steps=8, every=8)[-1], rtol=1e-12)
        assert np.abs(early[-1] - early[0]).max() > 1e-3
    Cluster(2).run(body)


@pytest.mark.parametrize("fragments, delay", [(1, 0), (2, 1), (4, 0)])
def test_bytes(fragments, delay):
    """A message has Ψ/P numbers; every `every` steps all of them are sent once."""
    def body(comm):
        sent = []
        comm.start_trace()

        def look(strategy):
            total = comm.stop_trace().bytes_sent(comm.rank)
            comm.start_trace()
            sent.append(total)
        run(comm, look, every=8, fragments=fragments, delay=delay, steps=16)
        comm.stop_trace()
        return sent[1:]         # without the first parameters, and a step that exchanges nothing
    for rank, sent in enumerate(Cluster(3, chooser=None).run(body)[0]):
        sizes = [stop - start for start, stop in chunk_bounds(N, fragments)]
        assert max(sent) <= 8 * all_reduce_elements(max(sizes), 3)[rank] * (1 + bool(delay))
        assert sum(sent) == 2 * 8 * sum(int(all_reduce_elements(n, 3)[rank]) for n in sizes)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 4, "fragments": 3},
                                     {"every": 4, "fragments": 2, "delay": 2}], ids=str)
def test_what_does_not_fit(options):
    with pytest.raises(ValueError, match=r"every=\d"):
        Cluster(1).run(lambda comm: make_strategy("diloco", GivenGradients(SHAPES), comm,
                                                  **options))
