"""Places to cut a chain of parts into stages.

    embed │ h.0 │ h.1 │ h.2 │ h.3 │ head          weights    8  4  4  4  4  9
    ──── stage 0 ────┼──── stage 1 ─────          [3]: a new stage begins at part 3, 16 | 17

The heaviest stage sets the pace of all.
"""

import math
from collections.abc import Sequence
from itertools import accumulate


def cut_evenly(weights: Sequence[float], num_stages: int) -> list[int]:
    """The parts at which stages 1, 2, … begin, so that the heaviest stage is as light as possible.

    `weights` are the parts' numbers of parameters, their seconds, or all 1.  Each stage has at
    least one part.  Raises ValueError if there are too few parts.
    """
    if not 1 <= num_stages <= len(weights):
        raise ValueError(f"a model of {len(weights)} parts has 1 to {len(weights)} stages, not "
                         f"{num_stages}: take fewer ranks or virtual stages, or a deeper model")
    sums = [0, *accumulate(weights)]
    # best[n]: of the first n parts cut into the stages so far, (weight of the heaviest, cuts)
    best: list = [(weight, []) for weight in sums]
    for stage in range(1, num_stages):
        best = [min(((max(best[cut][0], sums[n] - sums[cut]), [*best[cut][1], cut])
                     for cut in range(stage, n)), default=(math.inf, [])) for n in range(len(sums))]
    return best[-1][1]
