"""Codes of few bits in bytes: nothing is lost, nothing is wasted."""

import numpy as np
import pytest

from minipar.backend.shape_array import Memory, ShapeArray
from minipar.number_formats import FLOAT4_E2M1, FLOAT6_E3M2, pack, unpack


@pytest.mark.parametrize("bits", range(1, 9))
def test_what_is_packed_comes_back(bits):
    rng = np.random.default_rng(bits)
    for shape in ((1,), (2, 0), (31,), (3, 24), (2, 3, 13)):
        codes = rng.integers(0, 1 << bits, shape, dtype=np.uint8)
        packed = pack(codes, bits)
        assert packed.dtype == np.uint8
        assert packed.shape == (*shape[:-1], -(-shape[-1] * bits // 8))
        assert np.array_equal(unpack(packed, bits, shape[-1]), codes)


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_lie_in_a_row(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 40, dtype=np.uint8)
    row = "".join(f"{code:0{bits}b}"[::-1] for code in codes)
    expected = [int(row[i:i + 8][::-1], 2) for i in range(0, len(row), 8)]
    assert pack(codes, bits).tolist() == expected


def test_upper_bits_are_cut_off():
    assert pack(np.array([-1, 2], np.int8), 4).tolist() == [0x2F]       # signed nibbles, too
    assert pack(np.array([1, 2, 3], np.uint8), 4).tolist() == [0x21, 0x03]


def test_numbers_in_half_a_byte():
    numbers = np.float32([[0.5, -6, 3], [-0.0, 1.5, 2]])
    packed = pack(FLOAT4_E2M1.encode(numbers), FLOAT4_E2M1.bits)
    assert packed.tolist() == [[0xF1, 0x05], [0x38, 0x04]]
    assert np.array_equal(FLOAT4_E2M1.decode(unpack(packed, 4, 3)), numbers)
    six = FLOAT6_E3M2.encode(np.float32([1, 28, 0.0625, -28]))
    assert pack(six, FLOAT6_E3M2.bits).nbytes == 3


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="codes of 1 to 8 bits are packed, not of 9"):
        pack(np.zeros(3, np.uint16), 9)
    with pytest.raises(ValueError, match="5 codes of 4 bits are 3 bytes, not 2: say how many"):
        unpack(np.zeros(2, np.uint8), 4, 5)


def test_arrays_without_numbers_go_through():
    packed = pack(ShapeArray((3, 5), np.uint8, Memory()), 6)
    assert packed.shape == (3, 4) and unpack(packed, 6, 5).shape == (3, 5)
