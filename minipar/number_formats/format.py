"""Floating-point formats of any width, and rounding to their numbers.

The codes of the numbers are in `codes.py`.  Formats differ in what their last codes mean:

    specials   infinity                 NaN                           largest of 1 + 4 + 3 bits
    "ieee"     field all ones, fff = 0  field all ones, fff > 0       240     s 1110 111
    "fn"       none                     field and fraction all ones   448     s 1111 110
    "fnuz"     none                     the code of -0 (so no -0)     240     s 1111 111   (bias 8)
    "none"     none                     none                          480     s 1111 111

A number is rounded once, to nearest with ties to even or stochastically, as if the exponent had no
upper end.  A result above the largest number, infinity included, overflows: it becomes the largest
number ("saturate"), infinity ("inf") or NaN ("nan").  (`max`, … are named as in np.finfo.)

Source: IEEE 754-2019; Micikevicius et al., FP8 formats for deep learning (2022), for fn; Noune et
al., 8-bit numerical formats for deep neural networks (2022), for fnuz.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..backend import Array, is_host
from .codes import FLOAT32, Codes, in_l2_blocks
from .rounding import (
    FLOATS,
    copy_sign,
    count_by_adder,
    nearest_by_adder,
    nearest_by_bits,
    scale_of,
    step_by_chance,
)

SPECIALS = {"ieee": ("saturate", "inf", "nan"),     # and the ways to overflow that they allow
            "fn": ("saturate", "nan"), "fnuz": ("saturate", "nan"), "none": ("saturate",)}


def as_floats(array: Array) -> Array:
    """`array` as float32 or float64, whichever holds it: integers of 32 bits become float64.

    Raises TypeError for anything but real numbers of at most 64 bits.
    """
    array = np.asarray(array) if is_host(array) else array
    dtype = np.result_type(array.dtype, FLOAT32)
    if dtype not in FLOATS:
        raise TypeError(f"real numbers of at most 64 bits are rounded, not {array.dtype}: "
                        "convert them first")
    return array.astype(dtype, copy=False)


@dataclass(frozen=True)
class Format(Codes):
    """A number format: its codes, and what becomes of numbers above its largest.

    Raises ValueError for an impossible combination.
    """

    overflow: Literal["saturate", "inf", "nan"]

    def __post_init__(self):
        for problem in self._problems():
            raise ValueError(f"format {self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        if not (2 <= self.exponent_bits <= 8 and 1 <= self.mantissa_bits <= 22):
            yield ("2 to 8 exponent bits and 1 to 22 mantissa bits were expected, not "
                   f"{self.exponent_bits} and {self.mantissa_bits}: numbers are float32's")
        if self.specials not in SPECIALS:
            yield f"specials are one of {', '.join(SPECIALS)}, not {self.specials!r}"
        if self.overflow not in SPECIALS[self.specials]:
            yield (f"overflow {self.overflow!r} is impossible with specials {self.specials!r}: "
                   f"choose {' or '.join(SPECIALS[self.specials])}")
        # 2^e_max must be a float32.  So must the number that rounding.py adds, 2^(e_max + 23 - m),
        # unless there are 8 exponent bits: such a format is rounded by its bits.
        room = 127 if self.exponent_bits == 8 else 104 + self.mantissa_bits
        if not (0 <= self.bias <= 127 and self.e_max <= room):
            yield (f"bias {self.bias} makes numbers from 2^{self.e_min} to 2^{self.e_max}: they "
                   f"were expected in 2^-126 … 2^{room}")

    def with_overflow(self, overflow: Literal["saturate", "inf", "nan"]) -> "Format":
        """The same format with another overflow mode; ValueError for an impossible one."""
        return replace(self, overflow=overflow)

    # ---- rounding

    def round(self, array: Array, random: np.random.Generator | None = None) -> Array:
        """The nearest numbers of the format; with `random`, a neighbour drawn by chance.

        Each number is rounded once: float64 stays float64, float32 and narrower types give float32.
        A NaN stays a NaN; in a format without NaN it becomes -0, as in ml_dtypes and LLVM.
        """
        def rounded(x: Array, out: Array) -> None:
            self._round(x, random, out)
        array = as_floats(array)
        with np.errstate(invalid="ignore", over="ignore"):
            return in_l2_blocks(rounded, array, array.dtype)

    def _round(self, x: Array, random: np.random.Generator | None, out: Array) -> None:
        size, m = np.abs(x, out=out), self.mantissa_bits        # `out` is overwritten below
        too_wide = self.exponent_bits == 8 and x.dtype == FLOAT32   # 2^e_max · 2^(23 - m) is inf
        if not too_wide or random is not None:
            scale = scale_of(size, self.e_min, self.e_max)
        if too_wide:
            nearest = nearest_by_bits(size.view(np.uint32), 23 - m).view(FLOAT32)
        else:
            nearest = nearest_by_adder(size, scale, m)
        if random is not None:
            nearest = step_by_chance(size, nearest, scale * 2.0**-m, random)
        if not self.holds(size):
            self._overflow(nearest, size)
        copy_sign(nearest, x, out)
        if self.specials == "fnuz":
            out += 0.0                                          # -0 + 0 = +0
        elif self.specials == "none":
            np.copyto(out, -0.0, where=np.isnan(out))

    def _overflow(self, nearest: Array, size: Array) -> None:
        """Replace what is above the largest number; where `size` is NaN, so is `nearest`."""
        if self.overflow == "saturate":
            np.minimum(nearest, self.max, out=nearest)
        else:
            np.copyto(nearest, np.inf if self.overflow == "inf" else np.nan,
                      where=nearest > self.max)
        np.copyto(nearest, np.nan, where=np.isnan(size))    # a carry may have run through its bits

    def encode(self, array: Array, random: np.random.Generator | None = None) -> Array:
        """The codes of the rounded numbers, in an array of `dtype`."""
        array = as_floats(array) if random is None else self.round(array, random)
        with np.errstate(invalid="ignore", over="ignore"):
            return in_l2_blocks(self._encode, array, self.dtype)

    def _encode(self, x: Array, out: Array) -> None:
        if self.exponent_bits == 8:                             # the upper bits of a float32
            rounded = np.empty_like(x)
            self._round(x, None, rounded)
            bits = rounded.astype(FLOAT32, copy=False).view(np.uint32)      # exact
            out[...] = bits >> (23 - self.mantissa_bits)
            return
        size, sign_bit = np.abs(x), self.bits - 1
        codes = count_by_adder(size, scale_of(size, self.e_min, self.e_max), self.e_min,
                               self.mantissa_bits)
        if not self.holds(size):
            above = {"saturate": self._last, "inf": self._last + 1, "nan": self._nan}[self.overflow]
            np.copyto(codes, above, where=codes > self._last)
            np.copyto(codes, self._nan, where=np.isnan(size))
        sign = x.view(codes.dtype) >> (8 * x.itemsize - 1 - sign_bit)
        sign &= 1 << sign_bit
        if self.specials == "fnuz":
            sign *= codes > 0                                   # that code is a NaN, not -0
        codes |= sign
        out[...] = codes

    def add(self, a: Array, b: Array, out: Array) -> Array:
        """The rounded sums of two arrays of codes, into `out`: a ufunc for collectives.

        The sums are float32's, rounded again: that changes nothing for up to 10 mantissa bits.
        """
        with np.errstate(over="ignore"):
            out[...] = self.encode(self.decode(a) + self.decode(b))
        return out
