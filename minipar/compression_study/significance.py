"""Significance of differences over a few seeds: confidence intervals, and verdicts from them.

    gains g₁ … gₙ, one for each seed, both versions from the same dense model (paired)
    interval: mean ± t s / √n, in which the true mean is with probability 1 - ERROR

             0                                     -margin   0
    ─────────┼──[──●──]──▶  better              ──────╎──[───┼─●──]──▶  not worse by the margin
    ──────[──┼●──]───────▶  undecided           ───[──╎──●───┼]──────▶  undecided

Undecided means neither a difference nor equality.  That a version is not worse has to be shown as
well, by a margin chosen beforehand (one of the two one-sided tests of Schuirmann 1987).  More seeds
shorten the intervals and decide more comparisons.  But with any number of seeds,
the share ERROR of the comparisons without a difference is called different.

t is a quantile of Student's distribution with n - 1 degrees of freedom: gains are assumed normal.
Accuracies are multiples of a `resolution`, 1 / images.  If all gains happen to be equal, s is the
deviation that rounding to it alone causes, resolution / √12.
"""

import math
from functools import lru_cache

import numpy as np

ERROR = 0.05


@lru_cache
def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t with `degrees` of freedom for `probability` ≥ 1/2."""
    low, high = 0.0, 1.0
    while (1 + _between(high, degrees)) / 2 < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if (1 + _between(middle, degrees)) / 2 < probability:
            low = middle
        else:
            high = middle
    return high


def _between(t: float, degrees: int) -> float:
    """The probability of -t … t: Abramowitz & Stegun 1964, equations 26.7.3 (odd) and 26.7.4."""
    angle, odd = math.atan(t / math.sqrt(degrees)), degrees % 2
    square = math.cos(angle)**2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= square * (2 * k - 1 + odd) / (2 * k + odd)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def half_width(gains: np.ndarray, resolution: float = 0.0, error: float = ERROR) -> float:
    """Half of the confidence interval of the mean at 1 - error; infinite for one gain."""
    if len(gains) < 2:
        return math.inf
    deviation = max(float(np.std(gains, ddof=1)), resolution / math.sqrt(12))
    return t_quantile(1 - error / 2, len(gains) - 1) * deviation / math.sqrt(len(gains))


def verdict(gains: np.ndarray, resolution: float = 0.0) -> int:
    """1 better, -1 worse, 0 undecided; for one comparison by itself."""
    mean = float(np.mean(gains))
    return int(np.sign(mean)) if abs(mean) > half_width(gains, resolution) else 0


def not_worse(gains: dict[str, np.ndarray], margin: float, resolution: float = 0.0) -> list[str]:
    """The names shown to be worse by less than `margin`, with ERROR for all together.

    The tests are one-sided, each with its share of ERROR (Bonferroni).  So one of the names may be
    chosen afterwards; it is within the margin with probability 1 - ERROR.
    """
    error = 2 * ERROR / max(1, len(gains))          # of a two-sided interval
    return [name for name, found in gains.items()
            if np.mean(found) - half_width(found, resolution, error) > -margin]
