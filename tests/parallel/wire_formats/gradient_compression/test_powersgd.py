"""PowerSGD: full rank is exact, zeros leave no NaN, Q and errors are kept."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.testing import worlds
from tests.parallel.wire_formats.gradient_compression.test_tensor_wires import gradients, sums

MATRIX = {"w": (7, 5)}


@worlds(1, 2, 3, mpi=(3,))
def test_with_full_rank_the_sum_is_exact(world):
    given = gradients(world.size)

    def body(comm):
        found = sums(comm, PowerSGD(rank=9, start=0, min_rate=0.0), given)
        for key, array in given.items():
            np.testing.assert_allclose(found[key], array.sum(1), rtol=1e-11, atol=1e-12)
    world.run(body)


def test_a_gradient_of_zeros_leaves_no_nan():
    """Q becomes 0 and is kept: its orthonormal form must still be one."""
    def body(comm):
        given = gradients(comm.size, MATRIX)
        given["w"][1] = 0
        found = sums(comm, PowerSGD(rank=2, start=0, feedback=False), given)["w"]
        assert np.isfinite(found).all() and not found[1].any() and found[2:].any(axis=(1, 2)).all()
    Cluster(2).run(body)


def test_the_sum_is_a_projection_of_the_sum_and_the_error_its_rest():
    """One step: errors add up to what is missing, and are orthogonal to what was sent."""
    def body(comm):
        given, wire = gradients(comm.size, MATRIX, steps=1), PowerSGD(rank=2, start=0)
        [found], right = sums(comm, wire, given)["w"], given["w"][0].sum(0)
        assert np.linalg.matrix_rank(found) == 2
        np.testing.assert_allclose(np.sum(found * (right - found)), 0, atol=1e-12)
        missing = comm.size * (wire.kept["w/error"] - given["w"][0, comm.rank])
        np.testing.assert_allclose(missing, -found, rtol=1e-11, atol=1e-12)
    Cluster(3).run(body)


@pytest.mark.parametrize("warm, better", [(True, True), (False, False)])
def test_a_kept_q_turns_towards_the_largest_singular_vectors(warm, better):
    """The same gradient in each step, forgotten errors: subspace iteration goes on, or begins anew.
    """
    def body(comm):
        given = {"w": np.repeat(gradients(comm.size, {"w": (20, 20)}, 1)["w"], 30, axis=0)}
        found = sums(comm, PowerSGD(1, 0, feedback=False, warm_start=warm), given)["w"]
        right = given["w"][0].sum(0)
        best = np.sqrt(np.sum(np.linalg.svd(right)[1][1:]**2))
        return np.linalg.norm(found[-1] - right) / best
    [distance, _] = Cluster(2).run(body)[0]
    assert (distance < 1.01) == better


def test_with_feedback_the_sums_add_up():
    """Over 60 steps of one gradient, rank 1 has sent nearly all of it; without feedback it has not.
    """
    def body(comm):
        given = {"w": np.repeat(gradients(comm.size, MATRIX, 1)["w"], 60, axis=0)}
        lost = []
        for feedback in (True, False):
            total = sums(comm, PowerSGD(1, 0, feedback=feedback), given)["w"].sum(0)
            right = given["w"].sum((0, 1))
            lost.append(np.linalg.norm(total - right) / np.linalg.norm(right))
        return lost
    for with_feedback, without in Cluster(2).run(body)[0]:
        assert with_feedback < 0.15 < 0.5 < without


def test_other_buckets_keep_errors_and_q():
    """They belong to tensors: PyTorch's hook met the errors of the old buckets."""
    def body(comm):
        given = gradients(comm.size)
        one, many = PowerSGD(1, 0), PowerSGD(1, 0)
        sums(comm, one, {key: array[:3] for key, array in given.items()})
        many.load_state_dict(one.state_dict())
        rest = {key: array[3:] for key, array in given.items()}
        left = sums(comm, one, rest)
        right = sums(comm, many, rest, bucket_mb=1e-5, first_bucket_mb=1e-5)
        for key, values in left.items():
            np.testing.assert_allclose(values, right[key], rtol=1e-12, atol=1e-12)
    Cluster(2).run(body)


def test_an_error_of_another_shape_is_forgotten():
    wire = PowerSGD(1, 0)
    wire.kept["w/error"] = np.ones((2, 2))
    assert not wire.remembered("w/error", np.ones((7, 5))).any()


@pytest.mark.parametrize("shape, rank", [((7, 5), 2), ((5,), 0), ((6, 2, 2), 2), ((1, 9), 0),
                                         ((), 0), ((4, 4), 0)])
def test_what_is_not_shorter_is_sent_in_full(shape, rank):
    """4 × 4 in rank 2 would be 16 numbers of 16."""
    assert PowerSGD(2).rank_of(shape) == rank
    with pytest.raises(ValueError, match="rank=0"):
        PowerSGD(0)
