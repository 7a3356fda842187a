"""The codes of a floating-point format: what each means, and the number of a code.

    code    s eeee fff      field = eeee, fraction = fff, m = 3 fraction bits
    value   ±(1 + fraction / 2ᵐ) · 2^(field - bias)      normal: field > 0
            ±     fraction / 2ᵐ  · 2^(1 - bias)          subnormal: field = 0, evenly spaced

Rounding to these numbers is in `format.py`, with the table of what the last codes mean.

Source: IEEE 754-2019.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..backend import Array, asarray_like, is_host, l2_blocks

FLOAT32 = np.dtype(np.float32)


def in_l2_blocks(function: Callable[[Array, Array], None], array: Array,
                 dtype: np.dtype) -> Array:
    """A new array like `array`, which function(x, out) fills in blocks that stay in the cache."""
    out = np.empty_like(array, dtype=dtype, order="C")
    for piece, result in l2_blocks(array.reshape(array.size), out.reshape(out.size)):
        function(piece, result)
    return out


@dataclass(frozen=True)
class Codes:
    """1 sign bit, exponent_bits, mantissa_bits; unsigned integers of `dtype` (8, 16 or 32 bits)."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "fn", "fnuz", "none"]

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
        """True if no number is NaN, infinite or too large; False where looking would cost more."""
        return is_host(size) and bool(size.max(initial=0) < self.max)

    @cached_property
    def _nan(self) -> int:
        """The code of a NaN: the quiet one with one digit."""
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
