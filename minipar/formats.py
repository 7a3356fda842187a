"""Number formats that NumPy computes slowly or not at all, as codes to store and send.

    float16     1 sign, 5 exponent, 10 fraction bits     IEEE 754; largest number 65504
    bfloat16    1 sign, 8 exponent,  7 fraction bits     the upper half of a float32

Arithmetic is done in float32 and rounded once per operation, to nearest, ties to even.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .backend import Array


@dataclass(frozen=True)
class Format:
    """`encode(array) -> codes`, `decode(codes) -> float32`, and the bytes of a code."""

    name: str
    num_bytes: int
    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]

    def add(self, a: Array, b: Array, out: Array) -> Array:
        """The rounded sums of two arrays of codes, into `out`: a ufunc for collectives."""
        out[...] = self.encode(self.decode(a) + self.decode(b))
        return out


def to_bfloat16(array: Array) -> Array:
    """The codes (uint16) of the nearest bfloat16 numbers, ties to even; a NaN stays a NaN."""
    bits = array.astype(np.float32).view(np.uint32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = bits + (0x7FFF + ((bits >> 16) & 1))      # half of the last place, ties to even
    return np.where(is_nan, (bits >> 16) | 0x40, rounded >> 16).astype(np.uint16)


def _from_bfloat16(codes: Array) -> Array:
    return (codes.astype(np.uint32) << 16).view(np.float32)


def _to_float16(array: Array) -> Array:
    with np.errstate(over="ignore"):                    # too large is infinite, as IEEE 754 says
        return array.astype(np.float16)


FLOAT16 = Format("float16", 2, _to_float16, lambda codes: codes.astype(np.float32))
BFLOAT16 = Format("bfloat16", 2, to_bfloat16, _from_bfloat16)
FORMATS = {f.name: f for f in (FLOAT16, BFLOAT16)}
