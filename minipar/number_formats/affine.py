"""Affine quantization: scale and zero point put numbers on an evenly spaced grid of integers.

    x  ──────┼────┼────┼────┼────┼────┼──────▶       code  q = clip(round(x / scale) + zero)
             0    1    2    3    4    5              value x̂ = (q - zero) · scale
                            └ zero point: the code of 0

Rounding is to nearest, ties to even, so |x - x̂| ≤ scale / 2 for all x in the range for which the
scale was computed.  The range always contains 0, and 0 is a value of every grid: masks, padding and
the zeros of a ReLU stay exact.

    scheme            codes of 8 bits   zero        scale
    symmetric         -127 … 127        0           max |x| / 127
    symmetric_full    -128 … 127        0           max |x| / 127.5     PyTorch's symmetric int8
    asymmetric           0 … 255        0 … 255     (high - low) / 255

symmetric_full also uses the 256th code.  Its steps are 0.4 % finer, but the largest number may lie
half a step above the last code, where the error reaches its bound.

Source: Jacob et al., Quantization and training of neural networks for efficient integer-arithmetic-
only inference (2018), section 2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import Array

SCHEMES = ("symmetric", "symmetric_full", "asymmetric")
TINY = np.finfo(np.float32).tiny       # the least scale, used where all numbers are 0
LARGEST = np.finfo(np.float32).max


def check_finite(low: Array, high: Array) -> None:
    """Raise ValueError if an end of a range is NaN or infinite."""
    if not np.all(np.isfinite(low) & np.isfinite(high)):
        raise ValueError("NaN or infinity cannot be quantized: only finite numbers have a place on "
                         "a grid")


@dataclass(frozen=True)
class IntGrid:
    """The integers of 2 to 8 `bits` in one of SCHEMES.  Raises ValueError for other arguments."""

    bits: int = 8
    scheme: str = "symmetric"
    per = None                              # the granularity can be chosen
    scale_dtype = np.dtype(np.float32)

    def __post_init__(self):
        if not 2 <= self.bits <= 8:
            raise ValueError(f"integers of 2 to 8 bits are possible, not of {self.bits}")
        if self.scheme not in SCHEMES:
            raise ValueError(f"a scheme is one of {', '.join(SCHEMES)}, not {self.scheme!r}")

    @property
    def is_asymmetric(self) -> bool:
        """True if the scheme has a zero point."""
        return self.scheme == "asymmetric"

    @property
    def lowest(self) -> int:
        """The smallest code."""
        half = 1 << (self.bits - 1)
        return {"symmetric": 1 - half, "symmetric_full": -half, "asymmetric": 0}[self.scheme]

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1 if self.is_asymmetric else (1 << (self.bits - 1)) - 1

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the codes: int8, or uint8 for codes from 0."""
        return np.dtype(np.uint8 if self.is_asymmetric else np.int8)

    def calculate_qparams(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The (scale, zero point) for numbers from `low` to `high`, element by element.

        Scales are float32, zero points have the dtype of the codes.  No code decodes to more than
        float32's largest number.  So a range that ends within a step of that number is clipped by
        up to half a step.  Raises ValueError for NaN and infinity.
        """
        check_finite(low, high)
        low = np.minimum(low, 0).astype(np.float64)
        high = np.maximum(high, 0).astype(np.float64)
        steps = self.highest - self.lowest
        if not self.is_asymmetric:
            low, high = -np.maximum(-low, high), np.maximum(-low, high)
        scale = np.maximum((high - low) / steps, TINY).astype(np.float32)
        zero = np.zeros_like(scale)
        if self.is_asymmetric:
            zero = np.minimum(np.rint(-low.astype(np.float32) / scale), steps)
        farthest = np.maximum(self.highest - zero, zero - self.lowest).astype(np.float32)
        scale = np.minimum(scale, np.nextafter(LARGEST / farthest, np.float32(0)))
        return scale, zero.astype(self.dtype)

    def encode(self, x: Array, scale: Array, zero: Array) -> Array:
        """Quantize: the codes of the nearest values; scale and zero broadcast against x."""
        codes = np.rint(x / scale) + zero
        return np.clip(codes, self.lowest, self.highest).astype(self.dtype)

    def decode(self, codes: Array, scale: Array, zero: Array) -> Array:
        """Dequantize: the values of codes, float32 (or the scale's dtype), rounded once."""
        return (codes.astype(np.int16) - zero).astype(scale.dtype) * scale

    def from_bits(self, raw: Array) -> Array:
        """The codes whose bits are `raw` (uint8); signed codes are two's complement."""
        if self.is_asymmetric:
            return raw
        sign = 1 << (self.bits - 1)
        return ((raw.astype(np.int16) ^ sign) - sign).astype(np.int8)

    def for_embeddings(self, bits: int) -> "IntGrid":
        """The same scheme with at least `bits` bits."""
        return IntGrid(max(self.bits, bits), self.scheme)

    def metadata(self) -> dict[str, Any]:
        """The entries of a checkpoint's description."""
        return {"bits": self.bits, "scheme": self.scheme}


INT8 = IntGrid(8)
