"""A latency and a bandwidth from the times of messages: a straight line through points.

    seconds                 ×        α + n β, where the relative errors
             ×   ×  ×               (α + n β - t) / t  have the least squares; absolute errors
        α ┈ ×                       would let the largest messages alone decide, and leave α
                      bytes n       undetermined

The fit of Hockney 1994 for a link, with weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..simulated.links import Link


class Fit(NamedTuple):
    """A Link, and the worst relative error |α + n β - t| / t of the points that it was fitted to.

    Its bandwidth is 1 / β.
    """

    link: Link
    worst: float


def fit(sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """The Link that fits best to messages of `sizes` bytes that took `times` seconds.

    Its latency and its time per byte are at least 0.  Raises ValueError unless there are at least
    two different sizes with a positive time each.
    """
    n, t = np.array(sizes, dtype=np.float64), np.array(times, dtype=np.float64)
    if n.shape != t.shape or len(set(sizes)) < 2 or t.min() <= 0:
        raise ValueError(f"{len(n)} sizes and {len(t)} times do not make a line: give at least "
                         "two sizes, each with the positive seconds that it took")
    rows, ones = np.stack([1 / t, n / t], axis=1), np.ones(len(t))
    line = np.linalg.lstsq(rows, ones)[0]
    for i in (0, 1):
        if line[i] < 0:                                     # then the other explains it alone
            other = rows[:, 1 - i]
            line[i], line[1 - i] = 0, other @ ones / (other @ other)
    latency, per_byte = map(float, line)
    worst = float(np.abs(rows @ line - 1).max())
    return Fit(Link(latency, 1 / per_byte if per_byte else float("inf")), worst)
