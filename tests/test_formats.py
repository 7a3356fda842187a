"""Number formats against their definition: every code of bfloat16, every tie, every special."""

import numpy as np
import pytest

from minipar.formats import BFLOAT16, FLOAT16, FORMATS

CODES = np.arange(1 << 16, dtype=np.uint16)


def by_definition(code: int) -> float:
    """1 sign bit, 8 exponent bits biased by 127, 7 fraction bits."""
    sign, exponent, fraction = (-1) ** (code >> 15), code >> 7 & 255, code & 127
    if exponent == 255:
        return sign * np.inf if fraction == 0 else np.nan
    if exponent == 0:
        return sign * fraction * 2.0**-133
    return sign * (1 + fraction / 128) * 2.0 ** (exponent - 127)


def test_every_code_of_bfloat16_means_what_the_definition_says():
    assert np.array_equal(BFLOAT16.decode(CODES), np.array([*map(by_definition, CODES.tolist())]),
                          equal_nan=True)


def test_every_code_of_bfloat16_comes_back():
    numbers = BFLOAT16.decode(CODES)
    back, nan = BFLOAT16.encode(numbers), np.isnan(numbers)
    assert np.array_equal(back[~nan], CODES[~nan]) and nan.sum() == 2 * 127
    assert np.isnan(BFLOAT16.decode(back[nan])).all()
    assert np.array_equal(back[nan] >> 15, CODES[nan] >> 15)        # the sign is kept


def test_between_two_neighbours_bfloat16_takes_the_nearer_and_of_a_tie_the_even():
    low = CODES[:0x7F7F]                                # 0 and all positive but the largest
    below = BFLOAT16.decode(low).astype(np.float64)
    above = BFLOAT16.decode(low + np.uint16(1)).astype(np.float64)
    middle = ((below + above) / 2).astype(np.float32)   # exact: one more bit
    assert np.array_equal((below + above) / 2, middle)
    for sign in (1, -1):
        bit = np.uint16(0x8000 if sign < 0 else 0)
        assert np.array_equal(BFLOAT16.encode(sign * middle), low + (low & 1) | bit)
        for other, expected in ((np.float32(0), low), (np.float32(np.inf), low + np.uint16(1))):
            assert np.array_equal(BFLOAT16.encode(sign * np.nextafter(middle, other)),
                                  expected | bit)


def test_too_large_is_infinite():
    largest = by_definition(0x7F7F)
    half = 2.0 ** (127 - 8)                             # of the last place
    numbers = np.array([largest, np.nextafter(np.float32(largest + half), np.float32(0)),
                        largest + half, np.finfo(np.float32).max, np.inf], np.float32)
    assert BFLOAT16.encode(numbers).tolist() == [0x7F7F, 0x7F7F, 0x7F80, 0x7F80, 0x7F80]
    assert BFLOAT16.encode(-numbers).tolist() == [0xFF7F, 0xFF7F, 0xFF80, 0xFF80, 0xFF80]
    assert np.isinf(FLOAT16.decode(FLOAT16.encode(np.array([65520.0, 1e30])))).all()
    assert FLOAT16.decode(FLOAT16.encode(np.array([65519.0]))) == 65504


def test_every_nan_stays_one():
    """Also those whose upper half would be an infinity."""
    nan = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    assert np.isnan(BFLOAT16.decode(BFLOAT16.encode(nan.view(np.float32)))).all()


def test_float16_is_numpys():
    numbers = CODES.view(np.float16).astype(np.float32)
    finite = ~np.isnan(numbers)
    assert np.array_equal(FLOAT16.encode(numbers)[finite].view(np.uint16), CODES[finite])
    assert np.array_equal(FLOAT16.decode(CODES.view(np.float16)), numbers, equal_nan=True)


@pytest.mark.parametrize("fmt, unit", [(FLOAT16, 2.0**-11), (BFLOAT16, 2.0**-8)],
                         ids=["float16", "bfloat16"])
def test_relative_error_of_a_number_and_of_a_sum(fmt, unit):
    a, b = np.random.default_rng(0).standard_normal((2, 10000)).astype(np.float32)
    x, y = fmt.encode(a), fmt.encode(b)
    assert x.nbytes == fmt.num_bytes * a.size and FORMATS[fmt.name] is fmt
    assert (np.abs(fmt.decode(x) - a) <= unit * np.abs(a)).all()
    out = np.empty_like(x)
    assert fmt.add(x, y, out=out) is out
    exact = fmt.decode(x).astype(np.float64) + fmt.decode(y)
    assert (np.abs(fmt.decode(out) - exact) <= unit * np.abs(exact) + 2.0**-25).all()
