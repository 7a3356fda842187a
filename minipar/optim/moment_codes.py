"""Codes of 8 bits for an optimizer's states: one of 256 levels, and a scale for 2048 elements.

    block of m   [ 3e-5  -2e-3  7e-7 … ]     scale = largest |m| = 2e-3
    m / scale    [ 0.015  -1  3.5e-4 … ]     each code is the number of the nearest of 256 levels

Levels are dense near 0, as moments are.  m has levels of both signs: 64 of each between 0.1 and 1,
half as many between 0.01 and 0.1, and so on for seven powers of ten.  v has no negative levels, and
so twice as many positive ones.  A v that is not 0 keeps at least the smallest positive level.  If
it became 0, m / √v could be a step of any length once the gradient vanishes, as behind a ReLU.

Dettmers, Lewis, Shleifer & Zettlemoyer 2022, arXiv 2110.02861; the levels of bitsandbytes.
"""

import numpy as np

from ..backend import Array, asarray_like, record_allocation

BLOCK = 2048            # elements that share a scale


def levels(signed: bool) -> np.ndarray:
    """The 256 levels in ascending order, the largest of them 1."""
    found = [0.0, 1.0]
    for power in range(7):
        bounds = np.linspace(0.1, 1, 2**(power if signed else power + 1) + 1)
        middles = 10.0**(power - 6) * (bounds[:-1] + bounds[1:]) / 2
        found += [*middles, *-middles] if signed else [*middles]
    return np.array(sorted(found))


class Moment:
    """The codes (n,) of one state of a slab, and the scales of its blocks."""

    def __init__(self, like: Array, signed: bool):
        self.levels = asarray_like(levels(signed).astype(like.dtype), like)
        self.bounds = (self.levels[1:] + self.levels[:-1]) / 2
        n = like.shape[0]
        self.codes = record_allocation("optimizer states", np.zeros(n, np.uint8, like=like))
        self.scales = record_allocation("optimizer states", np.zeros(
            -(-n // BLOCK), np.float32, like=like))

    def scale(self, start: int, stop: int) -> Array:
        """The scale of each element; `start` begins a block."""
        blocks = self.scales[start // BLOCK:-(-stop // BLOCK)].astype(self.levels.dtype)
        return np.repeat(blocks, BLOCK)[:stop - start]

    def decode(self, start: int, stop: int) -> Array:
        """The values of these elements."""
        return self.levels[self.codes[start:stop]] * self.scale(start, stop)

    def encode(self, start: int, values: Array, scale_from: Array | None = None) -> None:
        """Keep `values` as the elements from `start` on.

        The scale of a block is the largest size of its values, or of its part of `scale_from`.
        """
        stop = start + values.shape[0]
        sizes = np.abs(values if scale_from is None else scale_from)
        blocks = np.zeros((-(-values.shape[0] // BLOCK), BLOCK), sizes.dtype, like=sizes)
        blocks.reshape(-1)[:values.shape[0]] = sizes
        self.scales[start // BLOCK:-(-stop // BLOCK)] = blocks.max(axis=1)
        scale = self.scale(start, stop)
        ratio = values / np.where(scale > 0, scale, 1)
        least = (values > 0) & (self.levels[0] == 0)        # of v: not below the smallest level
        self.codes[start:stop] = np.maximum(np.searchsorted(self.bounds, ratio), least)
