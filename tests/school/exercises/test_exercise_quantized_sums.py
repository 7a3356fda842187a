"""Exercises error_feedback and quantized_reduce_scatter."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec
from minipar.parallel.wire_formats.quantized.error_feedback import encode_with_feedback
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire

CODEC = BlockCodec(bits=4, size=8)


def gradients(num_steps: int, n: int = 40) -> np.ndarray:
    """One large number in each block, and small ones with a mean that is not 0."""
    found = 0.01 + 0.01 * np.random.default_rng(0).standard_normal((num_steps, n))
    found[:, ::8] = 1
    return found.astype(np.float32)


@pytest.mark.parametrize("num_steps", [2, 20, 200])
def test_all_that_was_sent_is_all_gradients_but_for_one_step(num_steps):
    residual, sent = np.zeros(40, np.float32), np.zeros(40)
    for numbers in (steps := gradients(num_steps)).copy():
        sent += CODEC.decode(encode_with_feedback(numbers, residual, CODEC), 40)
    error = np.abs(sent - steps.astype(np.float64).sum(0)).max()
    assert error < 0.1, (f"after {num_steps} steps the sum of the messages is off by {error:.3f}; "
                         "half a step of the grid is 0.07")
    np.testing.assert_allclose(sent + residual, steps.astype(np.float64).sum(0), rtol=1e-4,
                               err_msg="sent + residual is not the sum of all gradients")


def test_a_message_is_of_the_numbers_and_what_is_owed():
    numbers, residual = gradients(1)[0], np.linspace(-0.3, 0.3, 40).astype(np.float32)
    wanted = numbers + residual
    message = encode_with_feedback(numbers, residual, CODEC)
    np.testing.assert_array_equal(message, CODEC.encode(wanted),
                                  "the message is not that of numbers + residual")
    np.testing.assert_array_equal(numbers, wanted, "`numbers` is not what should have been sent")
    np.testing.assert_allclose(residual, wanted - CODEC.decode(message, 40), atol=1e-7,
                               err_msg="`residual` is not the error of the message, in place")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_overflow_is_sent_but_not_owed(bad):
    residual = np.full(40, 0.01, np.float32)
    numbers = gradients(1)[0]
    numbers[3] = bad
    message = encode_with_feedback(numbers, residual, CODEC)
    assert not np.isfinite(CODEC.decode(message, 40)[3]), "nobody will find the overflow"
    assert np.isfinite(residual).all(), \
        f"{bad} stays in the residual, and comes back in every later step"
    np.testing.assert_array_equal(residual[:8], np.float32(0.01), "where the message is not finite "
                                  "nothing was sent: the residual stays")


def test_what_is_owed_is_of_the_gradient_not_of_the_scaled_one():
    """The scale of the loss is halved after an overflow, and grows again."""
    found = []
    for scales in ([1.0] * 4, [1024.0, 512.0, 512.0, 2.0]):
        residual, sent = np.zeros(40, np.float32), []
        for numbers, scale in zip(gradients(4), scales):
            message = encode_with_feedback(numbers * np.float32(scale), residual, CODEC, scale)
            sent.append(CODEC.decode(message, 40) / np.float32(scale))
        found.append(np.array(sent))
    np.testing.assert_array_equal(found[1], found[0], "with a scale that changes other gradients "
                                  "arrive than without a scale")


def summed(counts: list[int], feedback: bool = False, num_steps: int = 1):
    """The inputs of all ranks in every step, and the results of reduce_scatter.

    The latter by rank: (sum of the pieces of all steps, bytes sent, whether a piece is in `flat`).
    """
    p, n = len(counts), sum(counts)
    every = np.random.default_rng(1).standard_normal((p, n)).astype(np.float32)

    def main(comm):
        sums = QuantizedWire(CODEC, feedback)
        total = 0
        comm.start_trace()
        for _ in range(num_steps):
            flat = every[comm.rank].copy()
            piece = sums.of("gradient").reduce_scatter(comm, flat, counts=counts)
            total = total + piece
        return total, comm.stop_trace().bytes_sent(comm.rank), np.shares_memory(piece, flat)
    return every, Cluster(p).run(main)[0]


SPLITS = pytest.mark.parametrize("counts", [[8, 8], [16, 16, 16], [5, 9, 1, 12], [20, 0, 3]],
                                 ids=str)


@SPLITS
def test_a_piece_is_the_sum_of_what_the_others_sent_and_of_its_own(counts):
    """Exactly: the others' numbers as their codes say, one's own as they are."""
    every, found = summed(counts)
    start = 0
    for r, n in enumerate(counts):
        piece = slice(start, start + n)
        expected = every[r][piece].copy()
        for s in range(len(counts)):
            if s != r:
                expected += CODEC.decode(CODEC.encode(every[s][piece]), n)
        np.testing.assert_allclose(found[r][0], expected, atol=1e-6, err_msg=f"rank {r} of "
                                   f"{len(counts)}, pieces of {counts}")
        assert found[r][2] or not n, f"rank {r}: the piece is not in its place in `flat`"
        start += n


@SPLITS
def test_codes_alone_are_sent_to_their_owners(counts):
    _, found = summed(counts)
    sizes = [CODEC.num_bytes(n) for n in counts]
    for r, (_, num_bytes, _) in enumerate(found):
        assert num_bytes == sum(sizes) - sizes[r], \
            f"rank {r} sent {num_bytes} bytes: the codes of others' pieces are " \
            f"{sum(sizes) - sizes[r]}"


def test_every_piece_has_a_debt_of_its_own():
    """With feedback the sum over many steps is off by no more than that of one."""
    errors = []
    for num_steps in (1, 40):
        every, found = summed([16, 16, 16], True, num_steps)
        total = np.concatenate([total for total, _, _ in found])
        errors.append(np.abs(total - num_steps * every.sum(0)).max())
    assert errors[1] < 2 * errors[0], f"off by {errors[0]:.3f} after one step, by " \
        f"{errors[1]:.3f} after 40: a piece is not sent with its own residual"


def test_one_rank_has_nothing_to_round():
    every, found = summed([40])
    np.testing.assert_array_equal(found[0][0], every[0], "one rank alone: nothing is sent")
    assert found[0][1] == 0
