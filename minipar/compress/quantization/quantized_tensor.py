"""A quantized weight: packed codes, a scale for each unit, and the zero points.

The value of an integer code is (code - zero) · scale; that of a float's code is the float · scale.

    rows (outputs, inputs) float32   4 bytes a number
    codes                            bits / 8 bytes a number; a row ends with a whole byte
    scale                            4 bytes a unit; 1 byte in block formats
    zero                             1 byte a unit, if the grid is asymmetric

A file stores a weight with many zeros, such as a pruned one, as

    codes                            only the codes of nonzero numbers, one after the other
    nonzero                          1 bit a number: 1 where it is not 0
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ...backend import Array
from ...number_formats import pack, unpack
from .float_grid import Grid
from .granularity import Granularity
from .observers import weight_qparams

ARRAY_BYTES = 256           # about the cost of one more array in a file, for its name and shape


@dataclass(frozen=True)
class QuantizedTensor:
    """The rows (outputs, inputs) of a weight on a grid; `packed` has the bytes of their codes."""

    grid: Grid
    per: Granularity
    shape: tuple[int, int]
    packed: Array
    scale: Array                # (…, 1), one for each unit of `per.split`
    zero: Array

    @classmethod
    def from_codes(cls, codes: Array, scale: Array, zero: Array, grid: Grid,
                   per: Granularity) -> Self:
        """Pack codes (outputs, inputs)."""
        packed = pack(codes.view(np.uint8), grid.bits)
        return cls(grid, per, codes.shape, packed, scale, zero)

    @classmethod
    def nearest(cls, rows: Array, grid: Grid, per: Granularity, observer: str = "minmax") -> Self:
        """Round every number to its nearest value.  Raises ValueError if one is not finite."""
        return cls.fitted(rows, *weight_qparams(per.split(rows), grid, observer), grid, per)

    @classmethod
    def fitted(cls, rows: Array, scale: Array, zero: Array, grid: Grid, per: Granularity) -> Self:
        """Round every number to the nearest value with the given scales and zero points."""
        codes = per.join(grid.encode(per.split(rows), scale, zero), rows.shape)
        return cls.from_codes(np.ascontiguousarray(codes), scale, zero, grid, per)

    def codes(self) -> Array:
        """The codes (outputs, inputs), of the grid's dtype."""
        return self.grid.from_bits(unpack(self.packed, self.grid.bits, self.shape[1]))

    def rows(self, dtype: Any = np.float32) -> Array:
        """Dequantize: the values (outputs, inputs)."""
        scale, zero = (self.per.spread(a, self.shape) for a in (self.scale, self.zero))
        return self.grid.decode(self.codes(), scale, zero).astype(dtype, copy=False)

    def part(self, rows: Array, columns: tuple[int, int]) -> Self:
        """The part with these rows, and of `columns` (start, stop), with the same scales.

        A cut within a group makes all groups smaller, and repeats their scales.
        """
        (start, stop), per = columns, self.per
        codes, scale, zero = self.codes()[rows, start:stop], self.scale, self.zero
        if per.kind != "tensor":
            scale, zero = scale[rows], zero[rows]
        if per.kind == "group":
            per = Granularity("group", math.gcd(per.size, start))
            units = slice(start // per.size, -(-stop // per.size))
            scale, zero = (a.repeat(self.per.size // per.size, axis=1)[:, units]
                           for a in (scale, zero))
        return self.from_codes(np.ascontiguousarray(codes), scale, zero, self.grid, per)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed codes, the scales, and an asymmetric grid's zero points."""
        return self.packed.nbytes + self.scale.nbytes + self.zero.nbytes * self.grid.is_asymmetric

    def arrays(self) -> dict[str, Array]:
        """The arrays to store: all codes, or only the codes of nonzero numbers if that takes less.
        """
        nonzero = self.rows() != 0
        codes = {"codes": pack(self.codes().view(np.uint8)[nonzero], self.grid.bits),
                 "nonzero": np.packbits(nonzero)}
        if sum(a.nbytes for a in codes.values()) + ARRAY_BYTES >= self.packed.nbytes:
            codes = {"codes": self.packed}
        zeros = {"zero": self.zero} if self.grid.is_asymmetric else {}
        return {**codes, "scale": self.scale, **zeros}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], shape: tuple[int, int], grid: Grid,
                    per: Granularity) -> Self:
        """The inverse of `arrays`.  Raises ValueError if the arrays do not fit shape and grid."""
        units = per.split(np.zeros(shape, np.uint8)).shape[:-1]
        expected = {"codes": (np.uint8, (shape[0], -(-shape[1] * grid.bits // 8))),
                    "scale": (grid.scale_dtype, (*units, 1))}
        expected |= {"zero": (grid.dtype, (*units, 1))} if grid.is_asymmetric else {}
        found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        nonzero = None
        if found.get("nonzero") == (np.uint8, (-(-shape[0] * shape[1] // 8),)):
            nonzero = np.unpackbits(arrays["nonzero"], count=shape[0] * shape[1]).reshape(shape) > 0
            expected |= {"codes": (np.uint8, (-(-int(nonzero.sum()) * grid.bits // 8),)),
                         "nonzero": found["nonzero"]}
        if found != expected:
            raise ValueError(f"{shape[0]} rows of {shape[1]} numbers of {grid.bits} bits per "
                             f"{per} are kept as {_listed(expected)}, not as {_listed(found)}")
        scale = arrays["scale"]
        zero = arrays.get("zero", np.zeros(scale.shape, grid.dtype))
        if nonzero is None:
            return cls(grid, per, shape, arrays["codes"], scale, zero)
        raw = np.broadcast_to(per.spread(zero, shape), shape).astype(np.uint8)      # the codes of 0
        raw[nonzero] = unpack(arrays["codes"], grid.bits, int(nonzero.sum()))
        return cls.from_codes(raw, scale, zero, grid, per)


def _listed(arrays: dict[str, tuple[Any, tuple]]) -> str:
    return ", ".join(f"{name} {np.dtype(dtype)} {shape}"
                     for name, (dtype, shape) in sorted(arrays.items()))
