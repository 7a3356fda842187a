"""A long run that fails: how often to write a checkpoint, and what is left of the time.

    work ──▶ checkpoint ──▶ work ──╳ failure ──▶ restart ──▶ work from the last checkpoint …

If a checkpoint takes δ seconds and a failure comes every M seconds in the mean, the best interval
between checkpoints is about √(2 δ M): Young 1974.  Times between failures are drawn from an
exponential distribution.  Goodput is the share of the time that went into work which a checkpoint
saved.
"""

import math
import random
from dataclasses import dataclass

FACTORS = [2 ** (n / 4) for n in range(-12, 13)]        # of Young's interval: 1/8 to 8


@dataclass(frozen=True)
class Failures:
    """A run of `run` seconds, and the seconds that a checkpoint and a restart take.

    `mtbf` is the mean time between failures of the whole cluster, in seconds.
    """

    mtbf: float
    checkpoint: float
    restart: float
    run: float
    seed: int = 0

    @property
    def young(self) -> float:
        """Young's interval, √(2 δ M)."""
        return math.sqrt(2 * self.checkpoint * self.mtbf)


def goodput(failures: Failures, interval: float) -> tuple[float, int]:
    """(share of the time that was useful, number of failures), with a checkpoint every `interval`.

    The same seed gives the same failures for every interval.
    """
    draw, now, useful, number = random.Random(failures.seed), 0.0, 0.0, 0
    while now < failures.run:
        lasts = min(draw.expovariate(1 / failures.mtbf), failures.run - now)
        saved = math.floor(lasts / (interval + failures.checkpoint))
        useful += saved * interval
        now += lasts
        if now < failures.run:
            number += 1
            now += failures.restart
    return useful / failures.run, number


def failure_rows(failures: Failures) -> list[tuple[str, float, float, int]]:
    """(name, interval, goodput, failures) of Young's interval, of the best simulated, of others."""
    tried = {factor: goodput(failures, factor * failures.young) for factor in FACTORS}
    best = max(tried, key=lambda factor: tried[factor][0])
    named = [("√(2 δ M)", 1.0), ("the best of those simulated", best),
             ("a quarter of √(2 δ M)", 0.25), ("four times √(2 δ M)", 4.0)]
    return [(name, factor * failures.young, *tried[factor]) for name, factor in named]
