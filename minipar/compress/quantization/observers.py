"""Observers choose the range of numbers for which scale and zero point are computed.

    minmax       from the smallest to the largest number ever seen: nothing is clipped
    moving       min and max of each batch, in a moving average: one outlier fades
    percentile   clips the largest and smallest thousandth of the numbers; mean over batches
    mse          min and max times the fraction (0.3 to 1) with the least squared error; mean over
                 batches

Clipping a few numbers makes the steps for all others smaller, which pays off most with few codes.
Each unit, the numbers along the last axis, gets its own range: shapes (…, n) → (…, 1).

Source: Krishnamoorthi, Quantizing deep convolutional networks for efficient inference (2018);
Nagel et al., A white paper on neural network quantization (2021), section 3.1.
"""

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_reduce
from .float_grid import Grid

NAMES = ("minmax", "moving", "percentile", "mse")
MOMENTUM = 0.01                             # of the moving average: PyTorch's
PERCENTILE = 99.9
FRACTIONS = np.linspace(1, 0.3, 36)         # of min and max, tried for the least squared error


def extremes(units: Array) -> tuple[Array, Array]:
    """The smallest and the largest number of each unit; 0 and 0 for an empty unit."""
    if not units.shape[-1]:
        return (np.zeros((*units.shape[:-1], 1), units.dtype, like=units),) * 2
    return units.min(axis=-1, keepdims=True), units.max(axis=-1, keepdims=True)


def percentiles(units: Array, percent: float = PERCENTILE) -> tuple[Array, Array]:
    """The `100 - percent` and `percent` percentiles of each unit."""
    if not units.shape[-1]:
        return extremes(units)
    low, high = np.percentile(units, [100 - percent, percent], axis=-1, keepdims=True)
    return low, high


def least_squares(units: Array, grid: Grid) -> tuple[Array, Array]:
    """The extremes of each unit, times that one of FRACTIONS with the least Σ (x - x̂)²."""
    low, high = extremes(units)
    best, least = np.ones_like(high, dtype=np.float64), np.full_like(high, np.inf, dtype=np.float64)
    for fraction in FRACTIONS:
        fitted = grid.calculate_qparams(low * fraction, high * fraction)
        error = units - grid.decode(grid.encode(units, *fitted), *fitted)
        squared = np.sum(error * error, axis=-1, keepdims=True, dtype=np.float64)
        best = np.where(squared < least, fraction, best)
        least = np.minimum(squared, least)
    return low * best, high * best


class Observer:
    """Keeps the range, `low` to `high`, of the numbers it observes, by the rule called `name`.

    With `comm`, its ranks observe together and agree on the widest range.  Raises ValueError for a
    name that is not in NAMES.
    """

    def __init__(self, name: str, grid: Grid, comm: Communicator | None = None):
        if name not in NAMES:
            raise ValueError(f"an observer is one of {', '.join(NAMES)}, not {name!r}")
        self.name, self.grid, self.comm = name, grid, comm
        self.low: Array | None = None
        self.high: Array | None = None
        self.count, self.frozen = 0, False

    def observe(self, units: Array) -> None:
        """Let the range follow these numbers (…, n), unless it is frozen."""
        if self.frozen:
            return
        rule = {"minmax": extremes, "moving": extremes, "percentile": percentiles,
                "mse": lambda units: least_squares(units, self.grid)}
        low, high = self._agreed(*rule[self.name](units))
        self.count += 1
        if self.count == 1:
            self.low, self.high = low, high
        elif self.name == "minmax":
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        else:
            weight = MOMENTUM if self.name == "moving" else 1 / self.count
            self.low = self.low + (low - self.low) * weight
            self.high = self.high + (high - self.high) * weight

    def _agreed(self, low: Array, high: Array) -> tuple[Array, Array]:
        if self.comm is None:
            return low, high
        with self.comm.labelled("control"):
            both = all_reduce(self.comm, np.stack([-low, high]), op="max")
        return -both[0], both[1]

    def freeze(self) -> None:
        """Keep the range as it is from now on."""
        self.frozen = True

    def calculate_qparams(self) -> tuple[Array, Array]:
        """The (scale, zero point) of the range.  Raises ValueError if nothing was observed."""
        if self.low is None:
            raise ValueError("the observer has seen no numbers: run calibration data through the "
                             "model first")
        return self.grid.calculate_qparams(self.low, self.high)


def weight_qparams(units: Array, grid: Grid, observer: str = "minmax") -> tuple[Array, Array]:
    """The (scale, zero point) of the units of a weight."""
    seen = Observer(observer, grid)
    seen.observe(units)
    return seen.calculate_qparams()
