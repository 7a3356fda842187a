"""Exercises of wires that send few bits of a gradient, or few numbers, on simulated ranks.

threshold_feedback, sparse_sum, largest_numbers, one_bit_sum, one_bit_means, majority_vote, terngrad
and one_bit_adam
"""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.parallel.wire_formats.gradient_compression.onebit_adam import OneBitAdam
from minipar.parallel.wire_formats.gradient_compression.onebit_sgd import OneBitSGD, column_means
from minipar.parallel.wire_formats.gradient_compression.sign_vote import SignVote
from minipar.parallel.wire_formats.gradient_compression.signs import Signs
from minipar.parallel.wire_formats.gradient_compression.sparse_sum import largest, sum_sparse
from minipar.parallel.wire_formats.gradient_compression.terngrad import TernGrad
from minipar.parallel.wire_formats.gradient_compression.threshold import Threshold
from tests.support import wires_by_definition as definition
from tests.support.agreement import check_same

SHAPES = {"a": (7, 3), "b": (16,)}


def flat_gradients(p, steps=5):
    """(steps, p, 37), the numbers of both tensors; the last two never have a gradient."""
    given = np.random.default_rng(p).standard_normal((steps, p, 37))
    given[..., -2:] = 0
    return given


def steps_of(p, make, given):
    """For each rank: (sums of each step as one vector, its bytes, and what it remembers)."""
    def body(comm):
        wire, found = make(), []
        for step in range(len(given)):
            mine, at, tensors = given[step, comm.rank], 0, {}
            for name, shape in SHAPES.items():
                size = int(np.prod(shape))
                tensors[name] = mine[at:at + size].reshape(shape).copy()
                at += size
            comm.start_trace()
            sums, kept = wire.combine(comm, tensors, step)
            sent = comm.stop_trace().bytes_sent(comm.rank)
            wire.kept |= {name: array.copy() for name, array in kept.items()}
            flat = np.concatenate([sums[name].reshape(-1) for name in SHAPES])
            found.append((flat, sent, {name: array.copy() for name, array in kept.items()}))
        return found
    return Cluster(p, chooser=None).run(body)[0]


def check_steps(ranks, right, what="the sum"):
    """Every step's sum of every rank is `right`'s."""
    for step, total in enumerate(right):
        for rank, found in enumerate(ranks):
            check_same(found[step][0], total, f"{what} of step {step} on rank {rank} of "
                                              f"{len(ranks)}", rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_threshold_says_later_what_it_has_not_said(p):
    given = flat_gradients(p)
    check_steps(steps_of(p, lambda: Threshold(0.7), given), definition.threshold(given, 0.7))


def test_threshold_sends_four_bytes_for_each_number_that_it_says():
    """Of 0.5, -1 and 3 in 37 numbers, rank 0 says two, and rank 1 none."""
    given = np.zeros((1, 2, 37))
    given[0, 0, 3:6] = 0.5, -1, 3
    ranks = steps_of(2, lambda: Threshold(0.7), given)
    check_steps(ranks, [0.7 * np.sign(np.where(np.abs(given[0, 0]) > 0.7, given[0, 0], 0))])
    sent = [found[0][1] for found in ranks]
    assert sent[0] - sent[1] == 8, \
        f"expected 8 bytes more of the rank that says two numbers, got {sent[0] - sent[1]}"


@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_sparse_sum_adds_what_each_rank_sends(p):
    values = np.random.default_rng(0).standard_normal((p, 12)).astype(np.float32)
    places = np.array([[0, 3, 11], [3, 5, 6], [1, 3, 7], [3, 4, 11]])[:p]

    def body(comm):
        comm.start_trace()
        total = sum_sparse(comm, values[comm.rank].copy(), places[comm.rank])
        return total, comm.stop_trace().bytes_sent(comm.rank)
    found = Cluster(p, chooser=None).run(body)[0]
    right = np.zeros(12, np.float32)
    for rank in range(p):
        right[places[rank]] += values[rank][places[rank]]
    for rank, (total, sent) in enumerate(found):
        check_same(total, right, f"the sum on rank {rank} of {p}", rtol=1e-6)
        assert total.tobytes() == found[0][0].tobytes(), \
            f"expected the same bits on all ranks, got {total} on rank {rank} beside {found[0][0]}"
        assert sent == (p - 1) * 3 * 8, \
            f"expected {(p - 1) * 3 * 8} bytes of 3 values and indices, got {sent}"


@pytest.mark.parametrize("values, k, right", [
    ([0.1, -5, 3, 0.2], 2, [1, 2]), ([3, 1, -4, 2], 3, [0, 2, 3]), ([2, -2, 2, 1], 2, [0, 1]),
    ([1, 2, -2, 3], 2, [1, 3]), ([0, 0, 0], 1, [0]), ([1, np.nan, 2], 1, [1]), ([7], 1, [0])])
def test_the_largest_numbers(values, k, right):
    found = largest(np.array(values, float), k).tolist()
    assert found == right, f"largest({values}, {k}): expected {right}, got {found}"


@pytest.mark.parametrize("p", [1, 2, 3])
def test_one_bit_a_number_with_two_errors(p):
    given = flat_gradients(p)
    check_steps(steps_of(p, Signs, given), definition.signs(given))


@pytest.mark.parametrize("p", [2, 3])
def test_what_is_told_in_one_bit_adds_up(p):
    """Σ sums = Σ gradients - the errors of all ranks and owners."""
    given = flat_gradients(p, 8)
    ranks = steps_of(p, Signs, given)
    told = sum(each[0] for each in ranks[0])
    left = sum(np.concatenate([found[-1][2][f"{name}/error"].reshape(-1) for name in SHAPES])
               for found in ranks)
    left += np.concatenate([found[-1][2]["a/owner_error"] for found in ranks])
    check_same(told + left, given.sum((0, 1)), "what was told and what is left", atol=1e-10)


def test_one_bit_a_number_and_a_scale_for_each_message():
    """37 numbers of 3 ranks: pieces of 13, 12 and 12, so 2 bytes of bits, and 8 of a scale."""
    for rank, found in enumerate(steps_of(3, Signs, flat_gradients(3, 1))):
        assert found[0][1] == 4 * 10, f"expected 40 bytes of rank {rank}, got {found[0][1]}"


@pytest.mark.parametrize("matrix, right", [
    ([[1, -2], [3, -4], [-6, 0]], [[2, 0], [-6, -3]]), ([[1, -1]], [[1, 0], [0, -1]]),
    ([[0], [0]], [[0], [0]])])
def test_two_means_for_each_column(matrix, right):
    check_same(column_means(np.array(matrix, float)), right, f"column_means({matrix})")
    assert column_means(np.array(matrix, np.float32)).dtype == np.float32, \
        f"expected float32 means of float32 numbers, got " \
        f"{column_means(np.array(matrix, np.float32)).dtype}"


@pytest.mark.parametrize("p", [1, 3])
def test_one_bit_sgd_tells_means(p):
    given = flat_gradients(p)
    columns = given[:, :, :21].reshape(-1, p, 7, 3)
    vector = given[:, :, 21:].reshape(-1, p, 16, 1)
    right = [np.concatenate([a.ravel(), b.ravel()]) for a, b in zip(
        definition.onebit_sgd(columns), definition.onebit_sgd(vector))]
    check_steps(steps_of(p, OneBitSGD, given), right)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_a_vote_of_signs(p):
    given = flat_gradients(p)
    check_steps(steps_of(p, lambda: SignVote(0.6), given), definition.sign_vote(given, 0.6),
                "the direction")


def test_one_loud_rank_has_one_vote():
    given = np.zeros((1, 3, 37))
    given[0] = [[-1000.0], [1.0], [1.0]]
    check_steps(steps_of(3, SignVote, given), np.ones((1, 37)), "the direction")


def test_a_vote_takes_two_bits_each_way():
    """37 numbers of 3 ranks: 13, 12 and 12, which are 4, 3 and 3 bytes; each twice."""
    sent = [found[0][1] for found in steps_of(3, SignVote, flat_gradients(3, 1))]
    assert sum(sent) == 40, f"expected 40 bytes of all ranks together, got {sent}"


def terngrad_by_definition(given):
    """All ranks in one process, with the draws of each."""
    wire, sizes = TernGrad(), {"a": 21, "b": 16}
    for step, grads in enumerate(given):
        total, at = np.zeros(37), 0
        for name, n in sizes.items():
            parts = [np.clip(g[at:at + n], -2.5 * g[at:at + n].std(), 2.5 * g[at:at + n].std())
                     for g in grads]
            scale = max(np.abs(part).max() for part in parts)
            for rank, part in enumerate(parts):
                drawn = wire.draw(name, step, rank, part.reshape(SHAPES[name])).reshape(-1)
                total[at:at + n] += scale * np.sign(part) * (drawn * scale < np.abs(part))
            at += n
        yield total


@pytest.mark.parametrize("p", [1, 2, 3])
def test_terngrad_draws_from_three_levels(p):
    given = flat_gradients(p)
    given[:, 0, 4] = 40                     # an outlier
    given[:, 0, :21] *= 3
    check_steps(steps_of(p, TernGrad, given), terngrad_by_definition(given))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_one_bit_adam(p):
    given = flat_gradients(p, 6)
    given[3:] *= 4                          # after v is fixed
    check_steps(steps_of(p, lambda: OneBitAdam(start=3), given),
                definition.onebit_adam(given, 3), "the direction")
