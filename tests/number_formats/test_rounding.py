"""Rounding: ties, neighbours, subnormal numbers and overflow against fractions; chance against
probability."""

import numpy as np
import pytest

from minipar.backend.arrays import BLOCK_BYTES
from minipar.number_formats import BFLOAT16, FLOAT4_E2M1, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16
from minipar.random import generator
from tests.support.by_definition import ALL, FEW_CODES, Rounding, name, neighbours_and_ties

SPECIAL = [0.0, np.inf, np.nan]


def same(a, b):
    """Equal numbers, NaN in the same places, and -0 apart from 0."""
    regular = ~np.isnan(a)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a[regular]), np.signbit(b[regular]))


def random_numbers(fmt, size):
    """As many of each size, and beyond both ends of the format."""
    rng = np.random.default_rng(fmt.bits)
    low, high = np.log2(fmt.smallest_subnormal) - 3, np.log2(fmt.max) + 2
    return 2.0 ** rng.uniform(max(low, -148), min(high, 127.9), size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fmt", FEW_CODES, ids=name)
@pytest.mark.one_in(2)
def test_rounding_is_that_of_fractions(fmt, dtype):
    """In float64 the neighbours of a tie are so near that rounding to float32 first would tie."""
    by_definition = Rounding(fmt)
    numbers = np.array([float(v) for v in (*by_definition.numbers, by_definition.beyond)])
    x = np.concatenate([neighbours_and_ties(numbers, dtype), random_numbers(fmt, 300),
                        SPECIAL]).astype(dtype)
    x = np.concatenate([x, -x])
    for overflow in ("saturate", "inf", "nan"):
        try:
            by_definition.fmt = fmt.with_overflow(overflow)
        except ValueError:
            continue
        expected = np.array([by_definition(v) for v in x.tolist()])
        rounded = by_definition.fmt.round(x)
        assert rounded.dtype == dtype and same(rounded, expected)
        assert same(by_definition.fmt.decode(by_definition.fmt.encode(x)), expected)


@pytest.mark.parametrize("fmt", [f for f in ALL if 8 < f.bits <= 16], ids=name)
def test_every_tie_of_wider_formats(fmt):
    """Midway between neighbours the even code wins; the next float decides for its own side."""
    last = int(np.argmax(fmt.decode(np.arange(1 << fmt.bits - 1).astype(fmt.dtype)) == fmt.max))
    codes = np.arange(last)
    low, high = (fmt.decode(c.astype(fmt.dtype)).astype(np.float64) for c in (codes, codes + 1))
    for dtype in (np.float32, np.float64):
        tie = ((low + high) / 2).astype(dtype)
        assert np.array_equal(tie, (low + high) / 2)
        for sign in (1, -1):
            minus = (1 << fmt.bits - 1) * (sign < 0)
            for x, code in ((tie, codes + (codes & 1)), (np.nextafter(tie, dtype(0)), codes),
                            (np.nextafter(tie, dtype(np.inf)), codes + 1)):
                code = np.where((code == 0) & (fmt.specials == "fnuz"), 0, code | minus)
                assert np.array_equal(fmt.encode(sign * x), code)
                assert np.array_equal(fmt.round(sign * x), fmt.decode(code.astype(fmt.dtype)))


@pytest.mark.parametrize("fmt", ALL, ids=name)
def test_the_error_is_bounded(fmt):
    x = np.append(random_numbers(fmt, 20000), [fmt.smallest_normal, fmt.max])
    x = x[x <= fmt.max].astype(np.float32)
    x = np.where(x > fmt.max, np.float32(fmt.max), x)
    error = np.abs(fmt.round(x).astype(np.float64) - x)
    normal = x >= fmt.smallest_normal
    assert (error[normal] <= 2.0 ** -(fmt.mantissa_bits + 1) * x[normal]).all()
    assert (error[~normal] <= 2.0 ** (fmt.e_min - fmt.mantissa_bits - 1)).all()
    if fmt.mantissa_bits < 20:      # and the bounds are met
        assert (error[normal] / x[normal]).max() > 2.0 ** -(fmt.mantissa_bits + 1) * 0.7
        assert fmt.bits > 16 or error[~normal].max() > fmt.smallest_subnormal * 0.4
    assert np.array_equal(fmt.round(fmt.round(x)), fmt.round(x))


def test_what_is_too_large():
    x = np.array([448, 464, 464.00003, 1e30, np.inf], np.float32)
    assert FLOAT8_E4M3FN.round(x).tolist() == [448] * 5
    assert FLOAT8_E4M3FN.round(-x).tolist() == [-448] * 5
    with_nan = FLOAT8_E4M3FN.with_overflow("nan").round(x)
    assert np.isnan(with_nan).tolist() == [False] * 2 + [True] * 3
    x = np.array([57344, 61439.996, 61440, 1e30, np.inf], np.float32)
    assert FLOAT8_E5M2.round(x).tolist() == [57344] * 2 + [np.inf] * 3
    assert FLOAT8_E5M2.with_overflow("saturate").round(x).tolist() == [57344] * 5
    x = np.array([3.3895314e38, 3.3961775e38, np.finfo(np.float32).max, np.inf], np.float32)
    assert np.isinf(BFLOAT16.round(x)).tolist() == [False, True, True, True]
    assert FLOAT16.round(np.array([65519.99, 65520, 1e300])).tolist() == [65504, np.inf, np.inf]


def test_integers_and_halves():
    assert FLOAT4_E2M1.round(np.arange(-8, 8)).tolist() == [
        -6, -6, -6, -4, -4, -3, -2, -1, 0, 1, 2, 3, 4, 4, 6, 6]
    half = np.float16([0.3, 1.26])
    assert FLOAT4_E2M1.round(half).dtype == np.float32
    assert FLOAT4_E2M1.round(half).tolist() == [0.5, 1.5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fmt", ALL, ids=name)
@pytest.mark.one_in(3)
def test_stochastic_rounding_lands_on_a_neighbour_and_is_unbiased(fmt, dtype):
    """The mean of n roundings is within 4 standard deviations of the number."""
    n, e = 20000, min(max(0, fmt.e_min), fmt.e_max - 1)
    spacing = 2.0 ** (e - fmt.mantissa_bits)
    for base, step in ((2.0**e, spacing), (-(2.0**e) * 1.5, spacing), (0.0, fmt.smallest_subnormal),
                       (fmt.smallest_subnormal, fmt.smallest_subnormal)):
        for share in (0.125, 0.5, 0.75):
            x = dtype(base + share * step)
            if float(x) != base + share * step:     # float32 is not that fine
                continue
            rounded = fmt.round(np.full(n, x), generator(0, fmt.name, str(share)))
            assert set(rounded.tolist()) == {base, base + step}
            up = (rounded == base + step).mean()
            assert abs(up - share) <= 4 * np.sqrt(share * (1 - share) / n)


@pytest.mark.parametrize("fmt", ALL, ids=name)
def test_chance_leaves_the_numbers_of_the_format_alone(fmt):
    x = fmt.round(np.append(random_numbers(fmt, 1000), SPECIAL).astype(np.float32))
    x = np.append(x, -x)
    assert same(fmt.round(x, generator(0, "x")), fmt.round(x))
    far = random_numbers(fmt, 1000).astype(np.float32)
    by_chance, nearest = fmt.round(far, generator(1, "x")), fmt.round(far)
    assert np.array_equal(fmt.decode(fmt.encode(far, generator(1, "x"))), by_chance, equal_nan=True)
    assert fmt.mantissa_bits > 10 or not np.array_equal(by_chance, nearest, equal_nan=True)


def test_chance_is_reproducible_and_blind_to_pieces():
    """A long array is rounded piece by piece, with the random numbers of one stream."""
    x = np.random.default_rng(0).standard_normal(BLOCK_BYTES).astype(np.float32)
    whole = FLOAT8_E4M3FN.round(x, generator(3, "weights", 7))
    assert np.array_equal(whole, FLOAT8_E4M3FN.round(x, generator(3, "weights", 7)))
    assert not np.array_equal(whole, FLOAT8_E4M3FN.round(x, generator(3, "weights", 8)))
    random = generator(3, "weights", 7)
    parts = [FLOAT8_E4M3FN.round(part, random) for part in np.split(x, [1000, 70000])]
    assert np.array_equal(whole, np.concatenate(parts))


def test_small_steps_are_not_lost_by_chance():
    """A thousand steps of 1/1000 of a spacing: to nearest nothing moves, by chance one spacing."""
    nearest = by_chance = np.ones(500, np.float32)
    random = generator(0, "steps")
    for _ in range(1000):
        step = np.float32(2.0**-7 / 1000)
        nearest = BFLOAT16.round(nearest + step)
        by_chance = BFLOAT16.round(by_chance + step, random)
    assert (nearest == 1).all()
    assert abs(by_chance.mean() - (1 + 2.0**-7)) < 4 * 2.0**-7 / np.sqrt(500)
