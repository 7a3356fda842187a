"""Number formats written down a second time, slowly: fractions, one number after the other."""

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np

from minipar.number_formats import FORMATS, Format

# Widths and biases that do not exist, beside those that do.
UNUSUAL = [Format("e2m1 with NaN", 2, 1, 1, "fn", "nan"),
           Format("e3m2 ieee", 3, 2, 3, "ieee", "nan"),
           Format("e4m3 high", 4, 3, 0, "none", "saturate"),
           Format("e7m6 low", 7, 6, 120, "fnuz", "nan"),
           Format("e7m4 lowest", 7, 4, 127, "fn", "saturate"),
           Format("e5m22", 5, 22, 15, "ieee", "saturate"),
           Format("tf32", 8, 10, 127, "ieee", "inf")]
ALL = [*FORMATS.values(), *UNUSUAL]
FEW_CODES = [f for f in ALL if f.bits <= 8]


def name(fmt) -> str:
    """The name of a test of this format."""
    return fmt.name


def value(fmt: Format, code: int):
    """The value of a code: a Fraction, or "inf", "-inf", "nan" or "-0"."""
    e, m = fmt.exponent_bits, fmt.mantissa_bits
    negative, field, fraction = code >> (e + m), code >> m & (2**e - 1), code & (2**m - 1)
    top = field == 2**e - 1
    if fmt.specials == "ieee" and top:
        return "nan" if fraction else "-inf" if negative else "inf"
    if fmt.specials == "fn" and top and fraction == 2**m - 1:
        return "nan"
    if negative and field == fraction == 0:
        return "nan" if fmt.specials == "fnuz" else "-0"
    size = (Fraction(fraction, 2**m) * Fraction(2) ** (1 - fmt.bias) if field == 0 else
            (1 + Fraction(fraction, 2**m)) * Fraction(2) ** (field - fmt.bias))
    return -size if negative else size


class Rounding:
    """Rounding into a format by looking for the neighbours among its numbers (sorted)."""

    def __init__(self, fmt: Format):
        self.fmt = fmt
        half = [value(fmt, code) for code in range(1 << (fmt.bits - 1))]
        self.numbers = [v for v in half if isinstance(v, Fraction)]
        assert self.numbers == sorted(self.numbers) and self.numbers[0] == 0
        # the number that would follow if the exponent had no end
        exponent = math.frexp(self.numbers[-1])[1] - 1
        self.beyond = self.numbers[-1] + Fraction(2) ** (exponent - fmt.mantissa_bits)

    def __call__(self, x: float) -> float:
        fmt = self.fmt
        if np.isnan(x):
            return -0.0 if fmt.specials == "none" else np.nan
        sign = np.copysign(1.0, x)
        size = self.size(abs(x))
        if size == 0 and fmt.specials == "fnuz":
            return 0.0
        return float(sign * size)

    def size(self, x: float) -> float:
        overflow = {"saturate": float(self.numbers[-1]), "inf": np.inf, "nan": np.nan}
        if np.isinf(x):
            return overflow[self.fmt.overflow]
        exact, numbers = Fraction(x), [*self.numbers, self.beyond]
        if exact >= self.beyond:
            return overflow[self.fmt.overflow]
        above = bisect_left(numbers, exact)
        if numbers[above] != exact:
            down, up = exact - numbers[above - 1], numbers[above] - exact
            above -= down < up or (down == up and above % 2 == 1)       # the even code of a tie
        return overflow[self.fmt.overflow] if above == len(self.numbers) else float(numbers[above])


def neighbours_and_ties(points: np.ndarray, dtype) -> np.ndarray:
    """Non-negative sorted numbers, what lies midway, and the floats of `dtype` beside all these."""
    points = np.concatenate([points, (points[1:] + points[:-1]) / 2]).astype(dtype)
    with np.errstate(over="ignore"):
        return np.concatenate([points, np.nextafter(points, dtype(0)),
                               np.nextafter(points, dtype(np.inf))])
