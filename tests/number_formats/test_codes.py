"""Number formats: what each code means, which code a number gets, and what cannot be."""

import re

import numpy as np
import pytest

from minipar.backend.shape_array import Memory, ShapeArray
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FORMATS, Format
from tests.support.by_definition import ALL, FEW_CODES, name, value

SMALL = [f for f in ALL if f.bits <= 16]


def all_codes(fmt):
    return np.arange(1 << fmt.bits).astype(fmt.dtype)


def exact(fmt, code):
    """The float that a code means, by definition."""
    return float(value(fmt, code))


@pytest.mark.parametrize("fmt", ALL, ids=name)
def test_every_code_means_what_the_definition_says(fmt):
    codes = all_codes(fmt) if fmt.bits <= 8 else np.unique(np.concatenate([
        np.arange(300), np.arange(0, 1 << fmt.bits, (1 << fmt.bits) // 1999),
        (1 << fmt.bits) - 1 - np.arange(300), (1 << fmt.bits - 1) - 300 + np.arange(600)]))
    expected = np.array([exact(fmt, c) for c in codes.tolist()])
    numbers = fmt.decode(codes.astype(fmt.dtype))
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers, expected)
    regular = ~np.isnan(expected)
    assert np.array_equal(np.signbit(numbers[regular]), np.signbit(expected[regular]))


@pytest.mark.parametrize("fmt", SMALL, ids=name)
def test_every_code_comes_back(fmt):
    codes = all_codes(fmt)
    numbers = fmt.decode(codes)
    with_infinities = fmt.with_overflow("inf") if fmt.specials == "ieee" else fmt
    back, nan = with_infinities.encode(numbers), np.isnan(numbers)
    assert back.dtype == fmt.dtype and np.array_equal(back[~nan], codes[~nan])
    assert np.isnan(fmt.decode(back[nan])).all()
    if fmt.specials != "fnuz":
        top = fmt.bits - 1
        assert np.array_equal(back[nan] >> top, codes[nan] >> top)          # the sign is kept
    expected = {"ieee": 2 * (2**fmt.mantissa_bits - 1), "fn": 2, "fnuz": 1, "none": 0}
    assert nan.sum() == expected[fmt.specials]


@pytest.mark.parametrize("fmt", ALL, ids=name)
def test_what_a_format_says_of_itself(fmt):
    if fmt.bits <= 16:
        numbers = fmt.decode(all_codes(fmt))
        positive = numbers[np.isfinite(numbers) & (numbers > 0)]
        assert (positive.max(), positive.min()) == (fmt.max, np.float32(fmt.smallest_subnormal))
    assert 2.0**fmt.e_max <= fmt.max < 2.0 ** (fmt.e_max + 1)
    assert fmt.smallest_normal == 2.0**fmt.e_min == fmt.smallest_subnormal * 2**fmt.mantissa_bits
    assert fmt.num_bytes == {False: 1 + (fmt.bits > 8), True: 4}[fmt.bits > 16]


def test_the_ranges_that_papers_print():
    """Largest, smallest normal and smallest number: Micikevicius et al., table 1; OCP MX, 5.3."""
    printed = {"float16": (65504, 2**-14, 2**-24), "float8_e5m2": (57344, 2**-14, 2**-16),
               "float8_e4m3fn": (448, 2**-6, 2**-9), "float6_e2m3": (7.5, 1, 0.125),
               "float6_e3m2": (28, 0.25, 0.0625), "float4_e2m1": (6, 1, 0.5)}
    for known, numbers in printed.items():
        fmt = FORMATS[known]
        assert (fmt.max, fmt.smallest_normal, fmt.smallest_subnormal) == numbers
    assert FORMATS["float4_e2m1"].decode(np.arange(8, dtype=np.uint8)).tolist() == [
        0, 0.5, 1, 1.5, 2, 3, 4, 6]


# Codes by ml_dtypes 0.6: two subnormal numbers, two normal ones, one that overflows.
ML_DTYPES = {
    "float16": ([1.0102988e-05, 1.9699337e-05, -57872.0, 0.00040636427, -72054.4],
        [0xaa, 0x14b, 0xfb10, 0xea8, 0xfc00]),
    "bfloat16": ([5.92339e-39, 8.035605e-39, -1.658212e+38, 0.065240964, -np.inf],
        [0x40, 0x57, 0xfefa, 0x3d86, 0xff80]),
    "float8_e5m2": ([3.1963194e-05, 1.9219726e-05, -0.00067138666, -10661.709, -63078.4],
        [0x2, 0x1, 0x91, 0xf1, 0xfc]),
    "float8_e4m3": ([0.001015443, 0.0011731681, -18.099577, 170.98975, 1913.2291],
        [0x1, 0x1, 0xd9, 0x73, 0x78]),
    "float8_e3m4": ([-0.032716382, -0.19531251, 0.5535007, 1.6335087, 1928.2898],
        [0x82, 0x8d, 0x22, 0x3a, 0x70]),
    "float8_e4m3fn": ([0.0023200621, 0.00984407, -35.299942, 34.66226, 715.23505],
        [0x1, 0x5, 0xe1, 0x61, 0x7f]),
    "float8_e4m3fnuz": ([0.007482418, -0.006347656, 40.629482, 0.71875006, 972.43805],
        [0x8, 0x86, 0x6a, 0x3c, 0x80]),
    "float8_e5m2fnuz": ([7.0568967e-06, -3.8146977e-06, -9093.406, -1725.0558, 59391.996],
        [0x1, 0x81, 0xf4, 0xeb, 0x7f]),
    "float8_e4m3b11fnuz": ([-0.0003051758, 0.00071944646, 25.126451, 4.3843184, 1189.115],
        [0x83, 0x6, 0x7d, 0x69, 0x80]),
    "float6_e2m3": ([-0.37503028, -0.4000767, -1.4551073, -1.3844789, 227.28639],
        [0x23, 0x23, 0x2c, 0x2b, 0x1f]),
    "float6_e3m2": ([0.06950576, 0.07746653, 3.2500002, -1.8611624, 1184.8317],
        [0x1, 0x1, 0x13, 0x2f, 0x1f]),
    "float4_e2m1": ([0.45249358, -0.80533767, 1.4447373, 1.0497044, 7.203417],
        [0x1, 0xa, 0x3, 0x2, 0x7]),
}


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=name)
def test_codes_of_ml_dtypes(fmt):
    numbers, codes = ML_DTYPES[fmt.name]
    overflow = {"ieee": "inf", "none": "saturate"}.get(fmt.specials, "nan")
    assert fmt.with_overflow(overflow).encode(np.array(numbers, np.float32)).tolist() == codes


def test_every_nan_stays_one():
    """Also those whose upper half would be an infinity, or where rounding carries."""
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    for fmt in ALL:
        numbers = fmt.decode(fmt.encode(bits.view(np.float32)))
        assert (numbers == 0).all() if fmt.specials == "none" else np.isnan(numbers).all(), fmt


@pytest.mark.parametrize("changes, sentence", [
    ({"overflow": "inf"}, "overflow 'inf' is impossible with specials 'fn': choose saturate or"),
    ({"specials": "none", "overflow": "nan"}, "overflow 'nan' is impossible with specials 'none'"),
    ({"specials": "fnu"}, "specials are one of ieee, fn, fnuz, none, not 'fnu'"),
    ({"exponent_bits": 9}, "2 to 8 exponent bits and 1 to 22 mantissa bits were expected, not 9"),
    ({"mantissa_bits": 0}, "not 4 and 0"),
    ({"bias": -1}, "bias -1 makes numbers from 2^2 to 2^16"),
    ({"exponent_bits": 8, "bias": 127}, "from 2^-126 to 2^128: they were expected in 2^-126"),
    ({"exponent_bits": 7, "bias": 16}, r"to 2^111: they were expected in 2^-126 … 2^107"),
])
def test_impossible_formats_are_refused_in_one_line(changes, sentence):
    parts = {"name": "x", "exponent_bits": 4, "mantissa_bits": 3, "bias": 7, "specials": "fn",
             "overflow": "nan", **changes}
    with pytest.raises(ValueError, match=f"^format x: .*{re.escape(sentence)}[^\n]*$"):
        Format(**parts)


def test_what_is_no_real_number_is_refused():
    for array in (np.ones(2, complex), np.array(["1"]), np.ones(2, np.longdouble)):
        with pytest.raises(TypeError, match="real numbers of at most 64 bits|promot|DType"):
            FLOAT16.round(array)


@pytest.mark.parametrize("fmt", FEW_CODES[:3], ids=name)
def test_shapes_and_layouts(fmt):
    array = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for view in (array, array.T, array[::2, 1:], array[:, ::-1], array[:0], array[0, 0],
                 np.asfortranarray(array), array.reshape(2, 2, 6)):
        result = fmt.round(view)
        assert result.shape == view.shape and result.dtype == np.float32
        assert result.ravel().tolist() == [fmt.round(v) for v in view.ravel()]
        codes = fmt.encode(view)
        assert codes.dtype == fmt.dtype and np.array_equal(fmt.decode(codes), result)
    assert fmt.round(1.3) == fmt.round(np.float32(1.3))


@pytest.mark.parametrize("fmt", ALL, ids=name)
def test_arrays_without_numbers_go_through(fmt):
    """So nothing looks at a single number: what arrays on a GPU need, too."""
    array = ShapeArray((3, 5), np.float32, Memory())
    assert (fmt.round(array).shape, fmt.round(array).dtype) == ((3, 5), np.float32)
    assert (fmt.encode(array).shape, fmt.encode(array).dtype) == ((3, 5), fmt.dtype)
    assert (fmt.decode(fmt.encode(array)).shape) == (3, 5)


@pytest.mark.parametrize("fmt, unit", [(FLOAT16, 2.0**-11), (BFLOAT16, 2.0**-8),
                                       (FLOAT8_E4M3FN, 2.0**-4)],
                         ids=["float16", "bfloat16", "float8_e4m3fn"])
def test_relative_error_of_a_number_and_of_a_sum(fmt, unit):
    a, b = np.random.default_rng(0).standard_normal((2, 10000)).astype(np.float32)
    x, y = fmt.encode(a), fmt.encode(b)
    assert x.nbytes == fmt.num_bytes * a.size and FORMATS[fmt.name] is fmt
    assert (np.abs(fmt.decode(x) - a) <= unit * np.abs(a) + fmt.smallest_subnormal / 2).all()
    out = np.empty_like(x)
    assert fmt.add(x, y, out=out) is out
    exact = fmt.decode(x).astype(np.float64) + fmt.decode(y)
    error = np.abs(fmt.decode(out) - exact)
    assert (error <= unit * np.abs(exact) + fmt.smallest_subnormal / 2).all()


def test_float16_is_numpys():
    codes = np.arange(1 << 16, dtype=np.uint16)
    numbers = codes.view(np.float16).astype(np.float32)
    finite = ~np.isnan(numbers)
    assert np.array_equal(FLOAT16.encode(numbers)[finite], codes[finite])
    assert np.array_equal(FLOAT16.decode(codes), numbers, equal_nan=True)
