"""A weight as it is kept: packed codes, a scale for each unit, and what they mean.

    rows (outputs, inputs) float32   4 bytes a number
    codes                            bits / 8 bytes a number, without gaps
    scale                            4 bytes a unit
    zero                             1 byte a unit, where the grid is asymmetric
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..backend import Array
from ..formats import pack, unpack
from .affine import Grid
from .granularity import Per
from .observers import fit


@dataclass(frozen=True)
class Quantized:
    """Rows (outputs, inputs) of a weight on a grid; `packed` are the bytes of their codes."""

    grid: Grid
    per: Per
    shape: tuple[int, int]
    packed: Array
    scale: Array                # (…, 1), one for each unit of Per.split
    zero: Array

    @classmethod
    def of_codes(cls, codes: Array, scale: Array, zero: Array, grid: Grid, per: Per) -> Self:
        """From the codes (outputs, inputs) themselves."""
        packed = pack(codes.view(np.uint8), grid.bits)
        return cls(grid, per, codes.shape, packed, scale, zero)

    @classmethod
    def nearest(cls, rows: Array, grid: Grid, per: Per, observer: str = "minmax") -> Self:
        """Every number to its nearest value.  Raises ValueError if any is not finite."""
        return cls.fitted(rows, *fit(per.split(rows), grid, observer), grid, per)

    @classmethod
    def fitted(cls, rows: Array, scale: Array, zero: Array, grid: Grid, per: Per) -> Self:
        """Every number to the nearest value of its unit's grid."""
        codes = per.join(grid.encode(per.split(rows), scale, zero), rows.shape)
        return cls.of_codes(np.ascontiguousarray(codes), scale, zero, grid, per)

    def codes(self) -> Array:
        """The integers (outputs, inputs), of the grid's type."""
        raw = unpack(self.packed, self.grid.bits, self.shape[1])
        if self.grid.is_asymmetric:
            return raw
        sign = 1 << (self.grid.bits - 1)            # two's complement of so many bits
        return ((raw.astype(np.int16) ^ sign) - sign).astype(np.int8)

    def rows(self, dtype: Any = np.float32) -> Array:
        """The values (outputs, inputs)."""
        scale, zero = (self.per.spread(a, self.shape) for a in (self.scale, self.zero))
        return self.grid.decode(self.codes(), scale, zero).astype(dtype, copy=False)

    def arrays(self) -> dict[str, Array]:
        """What has to be stored."""
        zeros = {"zero": self.zero} if self.grid.is_asymmetric else {}
        return {"codes": self.packed, "scale": self.scale, **zeros}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array], shape: tuple[int, int], grid: Grid,
                  per: Per) -> Self:
        """From what was stored.  Raises ValueError if it is not of that shape and kind."""
        units = per.split(np.zeros(shape, np.uint8)).shape[:-1]
        expected = {"codes": (np.uint8, (shape[0], -(-shape[1] * grid.bits // 8))),
                    "scale": (np.float32, (*units, 1))}
        expected |= {"zero": (grid.dtype, (*units, 1))} if grid.is_asymmetric else {}
        found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        if found != expected:
            raise ValueError(f"{shape[0]} rows of {shape[1]} integers of {grid.bits} bits per "
                             f"{per} are kept as {_listed(expected)}, not as {_listed(found)}")
        scale = arrays["scale"]
        zero = arrays.get("zero", np.zeros(scale.shape, grid.dtype))
        return cls(grid, per, shape, arrays["codes"], scale, zero)

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return sum(array.nbytes for array in self.arrays().values())


def _listed(arrays: dict[str, tuple[Any, tuple]]) -> str:
    return ", ".join(f"{name} {np.dtype(dtype)} {shape}"
                     for name, (dtype, shape) in sorted(arrays.items()))
