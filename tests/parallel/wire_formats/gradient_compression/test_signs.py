"""Signs, votes, codes of two bits, thresholds: identities, constant zeros, adversaries, bias."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce, chunk_bounds
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.gradient_compression.onebit_adam import OneBitAdam
from minipar.parallel.wire_formats.gradient_compression.sign_vote import SignVote
from minipar.parallel.wire_formats.gradient_compression.signs import Signs
from minipar.parallel.wire_formats.gradient_compression.terngrad import TernGrad
from minipar.parallel.wire_formats.gradient_compression.threshold import Threshold
from minipar.testing import worlds
from tests.parallel.wire_formats.gradient_compression.test_tensor_wires import gradients, sums
from tests.support.given_gradients import GivenGradients, step_along

VECTOR = {"w": (37,)}


@worlds(2, 3, mpi=(3,))
def test_what_is_told_adds_up(world):
    """Σ sums = Σ gradients - the errors of all ranks - those of the owners."""
    given = gradients(world.size, VECTOR, steps=20)

    def body(comm):
        wire = Signs()
        found = sums(comm, wire, given)["w"]
        left = wire.kept["w/error"].copy()
        start, stop = chunk_bounds(37, comm.size)[comm.rank]
        left[start:stop] += wire.kept["w/owner_error"]
        np.testing.assert_allclose(found.sum(0), given["w"].sum((0, 1)) - all_reduce(comm, left),
                                   rtol=1e-10, atol=1e-11)
    world.run(body)


def test_adam_does_not_move_what_never_had_a_gradient():
    """v is 0 there, and ± s / (0 + ε) is 10⁸ s; its momentum stays that of the others (1278)."""
    def body(comm):
        given, strategy = gradients(comm.size, VECTOR, 30), make_strategy(
            "ddp", GivenGradients(VECTOR), comm, wire=OneBitAdam(start=10))
        optimizer, w = SGD(strategy.slabs, lr=0.01), strategy.slabs[0].data
        before = w.copy()
        for step in range(30):
            step_along(strategy, optimizer, {"w": given["w"][step, comm.rank]})
        assert w[-1] == before[-1] and (w[:-1] != before[:-1]).all()
        assert np.abs(w - before).max() < 30 * 0.01 * 10
        assert np.abs(strategy.wire.kept["w/m"]).min() > 0
    Cluster(2).run(body)


def test_adam_saves_bytes_after_its_first_steps():
    def body(comm):
        given, wire, sent = gradients(comm.size, {"w": (1000,)}, 4), OneBitAdam(start=2), []
        strategy = make_strategy("ddp", GivenGradients({"w": (1000,)}, np.float32), comm, wire=wire)
        for step in range(4):
            comm.start_trace()
            step_along(strategy, SGD(strategy.slabs, lr=0.0), {"w": given["w"][step, comm.rank]})
            sent.append(comm.stop_trace().bytes_sent(comm.rank))
        return sent
    for first, second, third, fourth in Cluster(4, chooser=None).run(body)[0]:
        assert first == second == 4 * 1500 and third == fourth == 6 * (32 + 4)


def test_fewer_than_half_cannot_turn_a_number():
    """Two of five say the opposite, a thousand times as large; with two of four there is a tie."""
    def body(comm, num_wrong):
        honest = np.array([1.0, -2.0, 0.5, 0.0])
        mine = -1000 * honest if comm.rank < num_wrong else honest
        return sums(comm, SignVote(0.0), {"w": np.tile(mine, (1, comm.size, 1))})["w"][0]
    assert Cluster(5).run(lambda comm: body(comm, 2))[0][0].tolist() == [1, -1, 1, 0]
    assert Cluster(4).run(lambda comm: body(comm, 2))[0][0].tolist() == [0, 0, 0, 0]


def test_codes_of_two_bits_are_right_on_average():
    def body(comm):
        given = np.clip(np.random.default_rng(comm.rank).standard_normal(37), -1, 1)
        found = sums(comm, TernGrad(), {"w": np.tile(given, (1000, comm.size, 1))})["w"]
        right = all_reduce(comm, given)
        scale = all_reduce(comm, np.abs(given).max().reshape(1), op="max")
        assert len(np.unique(np.round(found / scale, 9))) <= 2 * comm.size + 1
        assert np.abs(found.mean(0) - right).max() < 5 * np.sqrt(comm.size) / np.sqrt(1000)
        return found[:3]
    first, second = Cluster(2).run(body)[0]
    np.testing.assert_array_equal(first, second)


def test_outliers_are_clipped_at_two_and_a_half_deviations():
    given = np.concatenate([np.ones(100), -np.ones(100), [1000.0]])

    def body(comm):
        found = sums(comm, TernGrad(), {"w": np.tile(given, (3, 2, 1))})["w"]
        return np.abs(found).max(), 2.5 * np.std(given)
    largest, limit = Cluster(2).run(body)[0][0]
    assert largest <= 2 * limit * (1 + 1e-12)


def test_a_threshold_says_nothing_until_enough_waits():
    def body(comm):
        return sums(comm, Threshold(1.0), {"w": np.full((10, comm.size, 1), 0.375)})["w"][:, 0]
    assert Cluster(2).run(body)[0][0].tolist() == [0, 0, 2, 0, 0, 2, 0, 0, 2, 0]
    with pytest.raises(ValueError, match="threshold=0"):
        Threshold(0)
