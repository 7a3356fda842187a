"""Blocks of small integers: lengths, errors of half a step, and infinities."""

import numpy as np
import pytest

from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec
from tests.support.block_numbers import CODECS, EIGHT, draw, half_steps


@CODECS
@pytest.mark.parametrize("n", [0, 1, 31, 32, 255, 256, 257, 1000])
def test_a_message_has_its_length_and_an_error_below_half_a_step(codec, n):
    numbers = draw(1, n)[0]
    message = codec.encode(numbers)
    assert message.dtype == np.uint8
    assert message.size == codec.num_bytes(n) == (n * codec.bits + 7) // 8 + 4 * (
        (n + codec.size - 1) // codec.size)
    decoded = codec.decode(message, n)
    assert decoded.dtype == np.float32 and decoded.shape == (n,)
    error = np.abs(decoded - numbers)
    assert (error <= half_steps(numbers, codec, [n])).all()
    if n > 30:
        assert error.max() > half_steps(numbers, codec, [n]).max() / 2
    again = codec.decode(codec.encode(decoded), n)
    np.testing.assert_allclose(again, decoded, rtol=1e-6)


@CODECS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_makes_its_block_nan(codec, bad):
    numbers = draw(1, 600)[0].astype(np.float64)
    numbers[300] = bad
    decoded = codec.decode(codec.encode(numbers), 600)
    first = 300 // codec.size * codec.size
    assert np.isnan(decoded[first:first + codec.size]).all()
    assert np.isfinite(np.delete(decoded, np.s_[first:first + codec.size])).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_the_largest_float32_stays_finite(bits):
    """Its scale is rounded: up, and the largest code times the scale would be infinite."""
    codec, largest = BlockCodec(bits, 8), np.finfo(np.float32).max
    for peak in (largest, np.nextafter(largest, np.float32(0)), np.float32(3e38)):
        numbers = np.array([peak, -peak, 0, peak / 3], np.float32)
        decoded = codec.decode(codec.encode(numbers), 4)
        assert np.isfinite(decoded).all()
        np.testing.assert_allclose(decoded[:3], numbers[:3], rtol=1e-6)


def test_codes_of_zeros_and_of_tiny_numbers():
    for numbers in (np.zeros(300, np.float32), np.full(300, 1e-42, np.float32)):
        decoded = EIGHT.decode(EIGHT.encode(numbers), 300)
        assert np.abs(decoded - numbers).max() <= np.finfo(np.float32).tiny
    with pytest.raises(ValueError, match="2 to 8 bits"):
        BlockCodec(bits=1)
    with pytest.raises(ValueError, match="at least one number"):
        BlockCodec(size=0)
