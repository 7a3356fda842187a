"""Top-k and DGC: nothing is lost, momentum before the sum, masking, clipping, the crossover."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.cost.data_parallel import all_reduce_elements
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.gradient_compression.sparse_sum import num_sent, sparse_bytes
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC, TopK
from minipar.testing import worlds
from tests.parallel.wire_formats.gradient_compression.test_tensor_wires import gradients, sums
from tests.support.cases import assert_all_close
from tests.support.given_gradients import GivenGradients, step_along
from tests.support.wires_by_definition import momentum_sgd


@worlds(2, 3, mpi=(3,))
def test_nothing_is_lost(world):
    """Σ sums = Σ gradients - what waits, on every rank and step."""
    given = gradients(world.size)

    def body(comm):
        wire = TopK(0.1)
        found = sums(comm, wire, given)
        for key, array in given.items():
            waits = wire.remembered(f"{key}/v", array[0, 0])
            left = all_reduce(comm, waits)
            np.testing.assert_allclose(found[key].sum(0), array.sum((0, 1)) - left, rtol=1e-10,
                                       atol=1e-12)
    world.run(body)


def test_in_full_it_is_momentum_sgd_which_masking_would_end():
    given = gradients(3)

    def body(comm):
        for density, equal in ((1.0, True), (0.999999999, False)):
            found = sums(comm, DGC(density), given)
            for key in ("w", "c"):
                right = np.array([*momentum_sgd(given[key], 0.9)])
                assert np.allclose(found[key], right, rtol=1e-12) == equal
            if not equal:               # every number is sent, and its momentum stopped
                np.testing.assert_allclose(found["w"], given["w"].sum(1), rtol=1e-12, atol=1e-12)
        found = sums(comm, DGC(0.999999999, masking=False), given)["w"]
        np.testing.assert_allclose(found, [*momentum_sgd(given["w"], 0.9)], rtol=1e-10, atol=1e-12)
    Cluster(3).run(body)


def test_a_dense_warm_up_hands_its_momentum_on():
    """As many ranks as there are, their shares of u add up to the dense velocity."""
    class Dense(DGC):
        def density_at(self, step):
            return 1.0 if step < 3 else 0.5

    def body(comm):
        wire, given = Dense(masking=False), gradients(comm.size)
        sums(comm, wire, {key: array[:3] for key, array in given.items()})
        velocity = [*momentum_sgd(given["w"], 0.9)][2]
        np.testing.assert_allclose(wire.kept["w/u"] * comm.size, velocity, rtol=1e-12)
    Cluster(3).run(body)


@pytest.mark.parametrize("bucket_mb", [25, 1e-4])
@pytest.mark.parametrize("scales", [None, [64.0]])
def test_the_gradient_is_clipped_on_each_rank_over_all_tensors(bucket_mb, scales):
    """Also those of other buckets, and whatever the loss scale."""
    def body(comm):
        given = gradients(comm.size, steps=1)
        norm = np.sqrt(sum(np.sum(array[0, comm.rank]**2) for array in given.values()))
        found = sums(comm, wire := DGC(1.0, wire_momentum=0.0, wire_clip=0.5), given, scales,
                     bucket_mb=bucket_mb)
        factors = [min(1, 0.5 / (np.sqrt(comm.size) * np.sqrt(sum(
            np.sum(array[0, r]**2) for array in given.values())))) for r in range(comm.size)]
        right = sum(f * g for f, g in zip(factors, given["w"][0]))
        np.testing.assert_allclose(found["w"][0], right, rtol=1e-12)
        assert norm * np.sqrt(comm.size) > 0.5 and wire.has_momentum
    Cluster(3).run(body)


def test_density_falls_in_stages():
    wire = TopK(0.001, stage_steps=10)
    assert [wire.density_at(step) for step in (0, 9, 10, 20, 30, 40, 99)] == [
        0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]
    assert TopK(0.001).density_at(0) == 0.001
    sizes = ((10, 0.1), (30, 0.1), (35, 0.1), (7, 0.001))
    assert [num_sent(n, density) for n, density in sizes] == [1, 3, 4, 1]
    with pytest.raises(ValueError, match="density=2"):
        TopK(2)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_sparse_messages_are_shorter_below_a_density_of_one_by_p(p):
    """float32: (p-1) k (4 + 4) bytes against 2(p-1)/p · 4n."""
    n = 64 * p * p
    dense = 4 * int(all_reduce_elements(n, p)[0])
    for density, shorter in ((0.98 / p, True), (1.02 / p, False)):
        assert (sparse_bytes([n], density, p) < dense) == shorter
    assert sparse_bytes([n], 1 / p, p) == dense


def quadratic(wire, momentum, one_optimum, steps=400):
    """The mean distance from the optimum at the end, of a noisy quadratic with 200 numbers."""
    def body(comm):
        strategy = make_strategy("ddp", GivenGradients({"w": (20, 10)}), comm, wire=wire())
        optimizer, random = SGD(strategy.slabs, lr=0.01, momentum=momentum), \
            np.random.default_rng(comm.rank)
        centre = 0.0 if one_optimum else random.standard_normal((20, 10))
        best = all_reduce(comm, np.zeros((20, 10)) + centre) / comm.size
        found = []
        for _ in range(steps):
            w = strategy.slabs[0].data.reshape(20, 10)
            noise = random.standard_normal((20, 10))
            step_along(strategy, optimizer, {"w": (w - centre + noise) / comm.size})
            found.append(np.sqrt(np.sum((w - best)**2)))
        return np.mean(found[-100:])
    return Cluster(4).run(body)[0][0]


@pytest.mark.slow
def test_momentum_correction_helps_with_one_optimum_and_hurts_with_one_per_rank():
    """1 % of the numbers in a step: each waits about 100 steps, unmasked."""
    after = [quadratic(lambda: TopK(0.01), 0.9, one) for one in (True, False)]
    before = [quadratic(lambda: DGC(0.01, masking=False), 0.0, one) for one in (True, False)]
    assert before[0] < after[0] and before[1] > after[1], (after, before)


@pytest.mark.parametrize("axes", [{"pp": 2}, {"tp": 2}, {"tp": 2, "pp": 2}], ids=str)
def test_a_rank_that_is_cut_over_a_mesh_is_clipped_by_the_norm_of_all_its_parts(axes):
    def run(comm, **mesh):
        wire = DGC(1.0, wire_momentum=0.5, wire_clip=0.1)
        strategy = make_strategy("ddp", MLP([4, 6, 8, 6, 4]).initialize(0, np.float64),
                                 DeviceMesh(comm, dp=2, **mesh), wire=wire)
        optimizer, random = SGD(strategy.slabs, lr=0.1), np.random.default_rng(strategy.dp.rank)
        for step in range(3):
            optimizer.zero_grad()
            strategy.forward_backward([Microbatch(
                random.standard_normal((3, 4)), random.integers(0, 4, 3), np.arange(3))
                for _ in range(2)], 0, step)
            strategy.step(optimizer)
            assert wire.factor < 1
        return strategy.state_dict()
    right = Cluster(2).run(run)[0][0]
    num_ranks = 2 * int(np.prod([*axes.values()]))
    for found in Cluster(num_ranks).run(lambda comm: run(comm, **axes))[0]:
        assert_all_close(found, right, 1e-10, 1e-13)
