"""Floating-point formats of any width: their codes, and rounding to their numbers.

    code    s eeee fff      field = eeee, fraction = fff, m = 3 fraction bits
    value   ±(1 + fraction / 2ᵐ) · 2^(field - bias)      normal: field > 0
            ±     fraction / 2ᵐ  · 2^(1 - bias)          subnormal: field = 0, evenly spaced

Formats differ in what their last codes mean:

    specials   infinity                 NaN                           largest of 1 + 4 + 3 bits
    "ieee"     field all ones, fff = 0  field all ones, fff > 0       240     s 1110 111
    "fn"       none                     field and fraction all ones   448     s 1111 110
    "fnuz"     none                     the code of -0 (so no -0)     240     s 1111 111   (bias 8)
    "none"     none                     none                          480     s 1111 111

A number is rounded once, to nearest with ties to even or stochastically, as if the exponent had no
upper end.  A result above the largest number, infinity included, overflows: it becomes the largest
number ("saturate"), infinity ("inf") or NaN ("nan").

Source: IEEE 754-2019; Micikevicius et al., FP8 formats for deep learning (2022), for fn; Noune et
al., 8-bit numerical formats for deep neural networks (2022), for fnuz.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ..backend import Array, asarray_like, is_host, l2_blocks
from .rounding import (
    FLOATS,
    copy_sign,
    count_by_adder,
    nearest_by_adder,
    nearest_by_bits,
    scale_of,
    step_by_chance,
)

FLOAT32 = np.dtype(np.float32)
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


def in_l2_blocks(function: Callable[[Array, Array], None], array: Array,
                 dtype: np.dtype) -> Array:
    """A new array like `array`, which function(x, out) fills in blocks that stay in the cache."""
    out = np.empty_like(array, dtype=dtype, order="C")
    for piece, result in l2_blocks(array.reshape(array.size), out.reshape(out.size)):
        function(piece, result)
    return out


@dataclass(frozen=True)
class Format:
    """A number format: its codes, and what becomes of numbers above its largest.

    A code has 1 sign bit, exponent_bits and mantissa_bits; it is an unsigned integer of `dtype`, of
    8, 16 or 32 bits.  Raises ValueError for an impossible combination.  `bits`, `max`,
    `smallest_normal` and `smallest_subnormal` mean what they mean in np.finfo.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "fn", "fnuz", "none"]
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
        """The same format with a different overflow mode; ValueError for an impossible one."""
        return replace(self, overflow=overflow)

    # ---- codes

    @cached_property
    def bits(self) -> int:
        """The bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @cached_property
    def dtype(self) -> np.dtype:
        """The type of the codes."""
        return np.min_scalar_type((1 << self.bits) - 1)

    @property
    def num_bytes(self) -> int:
        """The bytes of a code; `pack` stores narrow ones with fewer."""
        return self.dtype.itemsize

    @cached_property
    def e_min(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @cached_property
    def _last(self) -> int:
        """The code of the largest number."""
        all_ones = (1 << self.bits - 1) - 1
        return {"ieee": all_ones - (1 << self.mantissa_bits), "fn": all_ones - 1,
                "fnuz": all_ones, "none": all_ones}[self.specials]

    @cached_property
    def e_max(self) -> int:
        """The exponent of the largest number."""
        return max(self._last >> self.mantissa_bits, 1) - self.bias

    @cached_property
    def max(self) -> float:
        """The largest number."""
        return float(self._number(np.array(self._last)))

    @cached_property
    def smallest_normal(self) -> float:
        """The smallest positive number with full precision."""
        return 2.0 ** self.e_min

    @cached_property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, and the spacing of the subnormal numbers."""
        return 2.0 ** (self.e_min - self.mantissa_bits)

    def holds(self, size: Array) -> bool:
        """True only if `size` is on the host, where looking is cheap, and all below `max`."""
        return is_host(size) and bool(size.max(initial=0) < self.max)

    @cached_property
    def _nan(self) -> int:
        """The code of a NaN; with "ieee" the quiet one, whose fraction has a single 1."""
        ones = (1 << self.bits - 1) - 1
        return {"ieee": self._last + 1 + (1 << self.mantissa_bits - 1), "fn": ones,
                "fnuz": ones + 1, "none": ones + 1}[self.specials]

    def decode(self, codes: Array) -> Array:
        """The numbers (float32, which holds them all) of an array of codes."""
        def shift(codes: Array, out: Array) -> None:
            out.view(np.uint32)[...] = codes
            out.view(np.uint32)[...] <<= 23 - self.mantissa_bits

        def look_up(codes: Array, out: Array) -> None:
            out[...] = np.take(table, codes)

        if self.exponent_bits == 8:                             # the upper bits of a float32
            return in_l2_blocks(shift, codes, FLOAT32)
        if self.bits > 16:
            return self._number(codes)
        table = asarray_like(self._table, codes)
        return in_l2_blocks(look_up, codes, FLOAT32)

    @cached_property
    def _table(self) -> np.ndarray:
        return self._number(np.arange(1 << self.bits))

    def _number(self, codes: Array) -> Array:
        """The definition: float32 numbers of codes."""
        codes = codes.astype(np.int32)
        above, field_of = self.bits - 1, self.mantissa_bits
        size = codes & ((1 << above) - 1)
        field, fraction = size >> field_of, size & ((1 << field_of) - 1)
        fraction += (field > 0) * np.int32(1 << field_of)
        value = np.ldexp(fraction.astype(FLOAT32), np.maximum(field, 1) - self.bias - field_of)
        infinite = (size == self._last + 1) & (self.specials == "ieee")
        value = np.where(infinite, np.float32(np.inf), value)
        is_nan = (size > self._last) & ~infinite
        if self.specials == "fnuz":
            is_nan = codes == 1 << above
        value = np.where(is_nan, np.float32(np.nan), value)
        return np.copysign(value, np.where(codes >> above, np.float32(-1), np.float32(1)))

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
        """Replace numbers above the largest; where `size` is NaN, `nearest` becomes NaN."""
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
        """The rounded sums of two arrays of codes, into `out`: an `op` for collectives.

        They are sums in float32, rounded to the format.  For up to 10 mantissa bits the result is
        that of rounding once.
        """
        with np.errstate(over="ignore"):
            out[...] = self.encode(self.decode(a) + self.decode(b))
        return out
