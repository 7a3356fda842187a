"""Quantization to floats of 8 or 4 bits: grids that are dense around 0 and sparse far from it.

    name    a number is           scale                                         bits of a number
    fp8     e4m3, at most 448     max |x| / 448, float32, for each unit         8, and the scale
    mxfp8   e4m3                  a power of two in 1 byte, for 32 in a row     8.25
    mxfp4   e2m1, at most 6       a power of two in 1 byte, for 32 in a row     4.25

Integers are evenly spaced, so small numbers have the largest relative error.  Floats have about the
same relative error at any size: mxfp4 has 15 values as int4 does, but 3 of its 7 positive values
are at most 1.5.

Source: Micikevicius et al., FP8 formats for deep learning (2022), section 4; Rouhani et al.,
Microscaling data formats for deep learning (2023).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...backend import Array
from ...number_formats import (
    FLOAT8_E4M3FN,
    FLOAT8_E8M0,
    MXFP4,
    MXFP8_E4M3,
    BlockFormat,
    Format,
)
from ...number_formats.affine import LARGEST, TINY, IntGrid, check_finite
from .granularity import Granularity


@dataclass(frozen=True)
class FloatGrid:
    """Floats of a format times a scale, with the interface of IntGrid.

    A BlockFormat fixes the granularity (`per`), and has scales of one byte.
    """

    name: str
    format: Format | BlockFormat
    is_asymmetric = False
    dtype = np.dtype(np.uint8)

    @property
    def per(self) -> Granularity | None:
        """The granularity that the format fixes; None if it can be chosen."""
        is_block = isinstance(self.format, BlockFormat)
        return Granularity("group", self.format.size) if is_block else None

    @property
    def element(self) -> Format:
        """The format of one number."""
        return self.format.element if self.per else self.format

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.element.bits

    @property
    def scale_dtype(self) -> np.dtype:
        """The dtype of the scales: float32, or uint8 for codes of powers of two."""
        return FLOAT8_E8M0.dtype if self.per else np.dtype(np.float32)

    def calculate_qparams(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The (scale, zero point) for numbers from `low` to `high`; all zero points are 0.

        Raises ValueError for NaN and infinity.
        """
        check_finite(low, high)
        largest = np.maximum(np.abs(low), np.abs(high))
        if self.per:
            scale = self.format.scales(largest[..., None])
        else:
            scale = np.maximum(largest / self.element.max, TINY).astype(np.float32)
            scale = np.minimum(scale, np.nextafter(np.float32(LARGEST / self.element.max), 0))
        return scale, np.zeros_like(scale, dtype=self.dtype)

    def encode(self, x: Array, scale: Array, zero: Array) -> Array:
        """Quantize: the codes of the nearest values; scale broadcasts against x."""
        return self.element.encode(x / self._floats(scale))

    def decode(self, codes: Array, scale: Array, zero: Array) -> Array:
        """Dequantize: the values of codes, float32."""
        return self.element.decode(codes) * self._floats(scale)

    def from_bits(self, raw: Array) -> Array:
        """The codes whose bits are `raw`."""
        return raw

    def for_embeddings(self, bits: int) -> "FloatGrid":
        """This grid, or mxfp8 if it has fewer than `bits` bits."""
        return self if self.bits >= bits else FLOAT_GRIDS["mxfp8"]

    def metadata(self) -> dict[str, Any]:
        """The entries of a checkpoint's description."""
        return {"format": self.name}

    def _floats(self, scale: Array) -> Array:
        return FLOAT8_E8M0.decode(scale) if self.per else scale


FLOAT_GRIDS = {grid.name: grid for grid in (FloatGrid("fp8", FLOAT8_E4M3FN),
                                            FloatGrid("mxfp8", MXFP8_E4M3),
                                            FloatGrid("mxfp4", MXFP4))}

# A grid is the set of values that codes of a few bits stand for; both classes have these methods.
Grid = IntGrid | FloatGrid
