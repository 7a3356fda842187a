"""Block formats: the shared scale by its rule, specials, ends of blocks; and powers of two."""

import math

import numpy as np
import pytest

from minipar.backend.shape_array import Memory, ShapeArray
from minipar.number_formats import (
    BLOCK_FORMATS,
    FLOAT4_E2M1,
    FLOAT8_E5M2,
    FLOAT8_E8M0,
    MXFP4,
    MXFP8_E4M3,
    BlockFormat,
)
from minipar.random import generator
from tests.support.by_definition import Rounding, name

FORMATS = BLOCK_FORMATS.values()


def draw(*shape):
    """Numbers of many sizes, some zero."""
    rng = np.random.default_rng(shape)
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, (*shape[:-1], 1))
    return (numbers * (rng.random(shape) > 0.1)).astype(np.float32)


def by_the_rule(fmt, block):
    """Shared exponent of the standard, then fractions."""
    exponent = math.frexp(max(abs(v) for v in block))[1] - 1 - fmt.element.e_max
    rounding = Rounding(fmt.element)
    return [rounding(v / 2.0**exponent) * 2.0**exponent for v in block], exponent


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_blocks_follow_the_rule(fmt):
    array = draw(3, 75)
    codes, scales = fmt.encode(array)
    assert codes.shape == (3, 75) and scales.shape == (3, 3) and codes.dtype == np.uint8
    numbers = fmt.decode(codes, scales)
    assert numbers.dtype == np.float32 and np.array_equal(numbers, fmt.round(array))
    for row in range(3):
        for i, start in enumerate((0, 32, 64)):
            block = array[row, start:start + 32].tolist()
            expected, exponent = by_the_rule(fmt, block)
            assert scales[row, i] == exponent + 127
            assert numbers[row, start:start + 32].tolist() == expected


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_the_error_of_a_block_is_that_of_its_largest(fmt):
    """A unit of the last place at the largest, and half a smallest number for the small ones."""
    array = draw(200, 32)
    largest = np.abs(array).max(1, keepdims=True)
    error = np.abs(fmt.round(array).astype(np.float64) - array)
    e_max, m = fmt.element.e_max, fmt.element.mantissa_bits
    scale = 2.0 ** (np.floor(np.log2(largest)) - e_max)
    saturated = np.maximum(np.abs(array) / scale - fmt.element.max, 0)
    bound = np.maximum(np.abs(array) * 2.0 ** -(m + 1), scale * fmt.element.smallest_subnormal / 2)
    assert (error <= np.maximum(bound, saturated * scale)).all()


def test_powers_of_two():
    codes = np.arange(256, dtype=np.uint8)
    numbers = FLOAT8_E8M0.decode(codes)
    assert numbers[:255].tolist() == [2.0 ** (c - 127) for c in range(255)]
    assert np.isnan(numbers[255]) and np.array_equal(FLOAT8_E8M0.encode(numbers), codes)
    ties = np.float32([1.5, 1.4999999, 2.9999998, 3, 1.5 * 2.0**-127, 1e-45, 1.5 * 2.0**127])
    assert FLOAT8_E8M0.encode(ties).tolist() == [128, 127, 128, 129, 1, 0, 255]
    assert FLOAT8_E8M0.encode(np.array([0, -1, np.inf, -np.inf, np.nan])).tolist() == [255] * 5
    assert FLOAT8_E8M0.round(np.array([5.0, 6.0])).tolist() == [4, 8]


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_makes_its_block_nan_and_no_other(fmt, bad):
    array = draw(1, 80)
    array[0, 40] = bad
    codes, scales = fmt.encode(array)
    assert (scales == 255).tolist() == [[False, True, False]]
    for numbers in (fmt.decode(codes, scales), fmt.round(array)):
        assert np.isnan(numbers[0, 32:64]).all()
        assert np.isfinite(numbers[0, :32]).all() and np.isfinite(numbers[0, 64:]).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_ends_of_the_range(fmt):
    array = np.zeros((4, 32), np.float32)
    array[1, 3], array[2, :2], array[3, 0] = 1e-45, [3e38, -3e38], 2.0**-126
    codes, scales = fmt.encode(array)
    assert scales[:2].ravel().tolist() == [0, 0] and (fmt.round(array)[0] == 0).all()
    rounded = fmt.round(array)
    assert np.array_equal(fmt.decode(codes, scales), rounded) and np.isfinite(rounded).all()
    assert abs(rounded[2, 0] - np.float32(3e38)) <= 3e38 * 2.0 ** -fmt.element.mantissa_bits / 2
    assert rounded[3, 0] == array[3, 0] or fmt.element.e_max < 2
    assert fmt.round(np.float64([1e300])) == fmt.element.max * 2.0**127


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_axes_and_lengths(fmt):
    array = draw(70, 5)
    assert np.array_equal(fmt.round(array, axis=0), fmt.round(array.T).T)
    codes, scales = fmt.encode(array, axis=0)
    assert codes.shape == (70, 5) and scales.shape == (3, 5)
    assert np.array_equal(fmt.decode(codes, scales, axis=0), fmt.round(array, axis=0))
    with pytest.raises(ValueError, match="have a scale for every 32 along axis -1; got scales"):
        fmt.decode(codes, scales)
    assert fmt.round(np.zeros((3, 0), np.float32)).shape == (3, 0)
    shape_only = ShapeArray((4, 40), np.float32, Memory())
    codes, scales = fmt.encode(shape_only)
    assert (codes.shape, scales.shape) == ((4, 40), (4, 2))
    assert fmt.round(shape_only).shape == fmt.decode(codes, scales).shape == (4, 40)


def test_bits_of_a_number():
    assert [f.bits for f in FORMATS] == [8.25, 8.25, 6.25, 6.25, 4.25]
    assert BlockFormat("pairs", FLOAT4_E2M1, size=2).bits == 8


def test_chance():
    array = np.full((1, 32), 2.4, np.float32)       # elements 4 and 6 of halves
    rounded = MXFP4.round(np.repeat(array, 1000, 0), generator(0, "x"))
    assert set(np.unique(rounded).tolist()) == {2, 3}
    assert abs(rounded.mean() - 2.4) < 4 * np.sqrt(0.4 * 0.6 / 32000)
    codes, scales = MXFP8_E4M3.encode(array, generator(1, "x"))
    assert np.array_equal(MXFP8_E4M3.decode(codes, scales),
                          MXFP8_E4M3.round(array, generator(1, "x")))


def test_elements_that_do_not_saturate_are_refused():
    with pytest.raises(ValueError, match="format x: at least one number a block and elements that"):
        BlockFormat("x", FLOAT8_E5M2)
    with pytest.raises(ValueError, match="not 0 of"):
        BlockFormat("x", FLOAT4_E2M1, size=0)
