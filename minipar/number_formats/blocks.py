"""Block formats: 32 small numbers share a power of two (OCP MX).

    a block     v₁ v₂ … v₃₂               of float32: 128 bytes
    is stored   X | p₁ p₂ … p₃₂           X one byte, p in 8, 6 or 4 bits: 33, 25 or 17 bytes
    and means   X·p₁ X·p₂ … X·p₃₂

The rule: X = 2^(⌊log₂ maxᵢ |vᵢ|⌋ - e_max), and pᵢ is vᵢ / X, rounded; e_max is the exponent of the
largest number of the small format.  So the largest vᵢ / X is in [2^e_max, 2^(e_max + 1)), and
numbers above the format's maximum saturate: in e2m1, 7.9 becomes 6.

The standard leaves three cases open.  Here a NaN or an infinity makes X, and so the whole block,
NaN: one bad number is never hidden.  A block of zeros has the smallest X.  The last block of an
axis may be shorter.

Source: Open Compute Project, Microscaling Formats (MX) Specification 1.0 (2023), 5 and 6.3; Rouhani
et al., Microscaling data formats for deep learning (2023).
"""

from dataclasses import dataclass

import numpy as np

from ..backend import Array
from .format import FLOAT32, Format, as_floats
from .packing import in_groups

E8M0_BIAS, E8M0_NAN = 127, 255


class E8M0:
    """Powers of two as 8 bits of exponent: code c is 2^(c - 127), 255 is NaN; no zero, no sign."""

    name, bits, num_bytes, dtype = "float8_e8m0", 8, 1, np.dtype(np.uint8)

    def encode(self, array: Array) -> Array:
        """The codes of the nearest powers of two; a tie (1.5) goes to the larger.

        Numbers that are not positive become NaN, and so do those from 1.5 · 2¹²⁷ on.
        """
        array = as_floats(array)
        fraction, exponent = np.frexp(array)                    # 0.5 ≤ fraction < 1
        codes = exponent + np.int32(E8M0_BIAS - 1) + (fraction >= 0.75)
        codes = np.clip(codes, 0, E8M0_NAN)
        return np.where((array > 0) & (array < np.inf), codes, E8M0_NAN).astype(self.dtype)

    def decode(self, codes: Array) -> Array:
        """The powers of two, float32."""
        one = np.ones_like(codes, dtype=FLOAT32)
        power = np.ldexp(one, np.minimum(codes, E8M0_NAN - 1).astype(np.int32) - E8M0_BIAS)
        return np.where(codes == E8M0_NAN, np.float32(np.nan), power)

    def round(self, array: Array) -> Array:
        """The nearest powers of two, float32."""
        return self.decode(self.encode(array))


FLOAT8_E8M0 = E8M0()


@dataclass(frozen=True)
class BlockFormat:
    """`size` neighbours along an axis share a scale; each is a number of the format `element`."""

    name: str
    element: Format
    size: int = 32

    def __post_init__(self):
        if self.size < 1 or self.element.overflow != "saturate":
            raise ValueError(f"format {self.name}: at least one number a block and elements that "
                             f"saturate were expected, not {self.size} of {self.element}")

    @property
    def bits(self) -> float:
        """The bits of a number, its part of the scale included."""
        return self.element.bits + FLOAT8_E8M0.bits / self.size

    def encode(self, array: Array, random: np.random.Generator | None = None,
               axis: int = -1) -> tuple[Array, Array]:
        """The codes, in the shape of `array`, and the codes of the scales: ⌈n / size⌉ along `axis`.
        """
        blocks = self._split(as_floats(array), axis)
        scales = self.scales(blocks)
        codes = self.element.encode(self._divide(blocks, scales), random)
        return self._join(codes, axis, array.shape[axis]), np.moveaxis(scales, -1, axis)

    def decode(self, codes: Array, scales: Array, axis: int = -1) -> Array:
        """The numbers (float32).  Raises ValueError for scales that do not belong to the codes."""
        blocks, scales = self._split(codes, axis), np.moveaxis(scales, axis, -1)
        if scales.shape != blocks.shape[:-1]:
            raise ValueError(f"format {self.name}: codes {codes.shape} have a scale for every "
                             f"{self.size} along axis {axis}; got scales {scales.shape}")
        numbers = self.element.decode(blocks) * FLOAT8_E8M0.decode(scales)[..., None]
        return self._join(numbers, axis, codes.shape[axis])

    def round(self, array: Array, random: np.random.Generator | None = None,
              axis: int = -1) -> Array:
        """The numbers after encoding and decoding: float32, or float64 for float64."""
        array = as_floats(array)
        blocks = self._split(array, axis)
        scales = self.scales(blocks)
        numbers = self.element.round(self._divide(blocks, scales), random)
        numbers *= FLOAT8_E8M0.decode(scales)[..., None]
        return self._join(numbers, axis, array.shape[axis])

    def _split(self, array: Array, axis: int) -> Array:
        """(…, blocks, size), the last block filled up with zeros."""
        return in_groups(np.moveaxis(array, axis, -1), self.size)

    def _join(self, blocks: Array, axis: int, length: int) -> Array:
        rows = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * self.size)
        return np.moveaxis(rows[..., :length], -1, axis)

    def scales(self, blocks: Array) -> Array:
        """The codes of the scales (…) of blocks (…, size)."""
        largest = np.abs(blocks).max(axis=-1)                   # NaN if any is
        _, exponent = np.frexp(largest)                         # ⌊log₂⌋ + 1
        codes = exponent + np.int32(E8M0_BIAS - 1 - self.element.e_max)
        codes = np.where(largest > 0, np.clip(codes, 0, E8M0_NAN - 1), 0)
        return np.where(largest < np.inf, codes, E8M0_NAN).astype(FLOAT8_E8M0.dtype)

    def _divide(self, blocks: Array, scales: Array) -> Array:
        """The blocks over their scales: exact, except far below the smallest `element` number."""
        return blocks / FLOAT8_E8M0.decode(scales)[..., None]
