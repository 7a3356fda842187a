"""Exercises outer_step, gossip, power_iteration and momentum_before_the_sum."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.optim import SGD
from minipar.parallel.data.diloco import DiLoCo
from minipar.parallel.data.gossip import Gossip
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC, TopK
from tests.support import wires_by_definition as definition
from tests.support.agreement import check_same
from tests.support.given_gradients import GivenGradients, step_along


def diloco(comm, **options):
    return DiLoCo(GivenGradients({"w": (4,)}), comm, every=1, **options)


def test_an_outer_step_is_nesterovs():
    """Against PyTorch's SGD with nesterov=True, written out."""
    def body(comm):
        strategy = diloco(comm, outer_lr=0.5, outer_momentum=0.8)
        theta, velocity = np.array([1.0, 2.0]), np.zeros(2)
        right, buffer = theta.copy(), np.zeros(2)
        for delta in np.random.default_rng(0).standard_normal((5, 2)):
            theta, velocity = strategy.outer_step(theta, velocity, delta)
            buffer = 0.8 * buffer + delta
            right = right - 0.5 * (delta + 0.8 * buffer)
            check_same(velocity, buffer, "v, which is μ v + Δ")
            check_same(theta, right, "θ, which is θ - η (Δ + μ v)")
    Cluster(1).run(body)


def test_an_outer_step_changes_no_argument():
    def body(comm):
        theta, velocity, delta = np.ones(2), np.ones(2), np.ones(2)
        diloco(comm).outer_step(theta, velocity, delta)
        assert (theta == 1).all() and (velocity == 1).all() and (delta == 1).all(), \
            "a step that is only tried, at the end of a run, must leave θ and v as they are"
    Cluster(1).run(body)


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_gossip_mixes_the_old_parameters_of_neighbours(p):
    def body(comm):
        strategy = Gossip(GivenGradients({"w": (3,)}), comm)
        strategy.slabs[0].data[...] = 10.0**comm.rank
        step_along(strategy, SGD(strategy.slabs, lr=0.5), {"w": np.full(3, comm.rank + 1.0)})
        return strategy.slabs[0].data.copy()
    for rank, w in enumerate(Cluster(p).run(body)[0]):
        near = {(rank - 1) % p, rank, (rank + 1) % p}
        right = sum(10.0**j for j in near) / len(near) - 0.5 * (rank + 1)
        check_same(w, np.full(3, right), f"rank {rank} of {p}")


def test_gossip_sends_each_neighbour_its_parameters_once():
    def body(comm):
        strategy = Gossip(GivenGradients({"w": (3,)}), comm)
        optimizer = SGD(strategy.slabs, lr=0.5)
        comm.start_trace()
        step_along(strategy, optimizer, {"w": np.ones(3)})
        return comm.stop_trace().bytes_sent(comm.rank)
    sent = Cluster(5).run(body)[0]
    assert sent == [2 * 3 * 8] * 5, f"expected 48 bytes of each rank, got {sent}"


def powersgd_steps(p, num_steps=4, rank=2):
    """(what PowerSGD gives on p ranks, by definition), of a matrix and a vector."""
    draw = np.random.default_rng(3)
    matrices, vectors = draw.standard_normal((num_steps, p, 7, 5)), draw.standard_normal(
        (num_steps, p, 5))
    wire = PowerSGD(rank, start=0)
    right = [*definition.powersgd(matrices, wire.first_q("w", 0, (5, rank)), rank)]

    def body(comm):
        wire, found = PowerSGD(rank, start=0), []
        for step in range(num_steps):
            sums, kept = wire.combine(comm, {"w": matrices[step, comm.rank].copy(),
                                             "b": vectors[step, comm.rank].copy()}, step)
            wire.kept |= kept
            found.append(sums)
        return found
    return Cluster(p).run(body)[0], right, vectors.sum(1)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_power_iteration(p):
    found, right, vectors = powersgd_steps(p)
    for rank, steps in enumerate(found):
        for step, sums in enumerate(steps):
            where = f"rank {rank} of {p}, step {step}"
            check_same(sums["b"], vectors[step], f"{where}: the sum of what is sent in full")
            check_same(sums["w"], right[step], f"{where}: the sum of matrices", 1e-7, 1e-9)


def sparse_steps(wire_of, **rule):
    """(what a wire gives on 2 ranks in 6 steps, by definition), of a matrix."""
    gradients = np.random.default_rng(4).standard_normal((6, 2, 5, 4))
    right = [*definition.dgc(gradients, 0.2, **rule)]

    def body(comm):
        wire, found = wire_of(), []
        for step in range(6):
            sums, kept = wire.combine(comm, {"w": gradients[step, comm.rank].copy()}, step)
            wire.kept |= kept
            found.append(sums["w"])
        return found
    return Cluster(2).run(body)[0], right


@pytest.mark.parametrize("masking", [True, False])
def test_momentum_before_the_sum(masking):
    found, right = sparse_steps(lambda: DGC(0.2, masking=masking), momentum=0.9, masking=masking)
    for rank, steps in enumerate(found):
        for step, total in enumerate(steps):
            check_same(total, right[step], f"rank {rank}, step {step}, masking {masking}")


def test_without_momentum_it_is_top_k_with_error_feedback():
    found, right = sparse_steps(lambda: TopK(0.2))
    for rank, steps in enumerate(found):
        check_same(steps, right, f"the sums on rank {rank}, by step, row and column")


def test_what_waits_is_returned_before_it_is_sent():
    wire = DGC(0.2, wire_momentum=0.0)
    g = np.array([[3.0, -1.0], [0.5, 2.0]])
    v, sent, new = wire.choose("w", g, 2)
    assert v.tolist() == g.tolist() and sent.tolist() == [0, 3], "v, and the places of 3 and 2"
    assert new["w/v"].tolist() == [[0, -1], [0.5, 0]], "what was sent does not wait any more"
