"""Learning-rate schedules: functions of the step number, without state.

    cosine    ╱▔╲_      half a cosine down (Loshchilov & Hutter 2017, equation 5, without restarts)
    linear    ╱╲        a straight line down
    wsd       ╱▔▔▔╲     warm-up, stable, decay: down in the last fifth alone (Hu et al. 2024,
                        arXiv 2404.06395; Hägele et al. 2024, arXiv 2405.18392)

Each rises in a straight line for `num_warmup` steps.  To add one: an entry of LR_SCHEDULES.
"""

import math
from collections.abc import Callable
from functools import partial


def warmup_cosine(step: int, peak: float, num_warmup: int, num_steps: int,
                  floor: float = 0.0) -> float:
    """The learning rate of step 0, 1, …: linear up to `peak`, then half a cosine down to `floor`.

    Of a warm-up, the last step alone is at the peak; step `num_steps` - 1 is at the floor, and so
    are any after it.
    """
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup + 1) / max(1, num_steps - num_warmup)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def warmup_stable_decay(step: int, peak: float, num_warmup: int, num_steps: int,
                        floor: float = 0.0, decay: float = 0.2) -> float:
    """Linear up to `peak`, which holds until the last share `decay` of the steps; linear down."""
    num_stable = max(num_warmup, num_steps - int(decay * num_steps))        # with the warm-up
    if step < num_stable:
        return peak * min(1.0, (step + 1) / max(1, num_warmup))
    progress = (step - num_stable + 1) / max(1, num_steps - num_stable)
    return peak + (floor - peak) * min(1.0, progress)


LR_SCHEDULES: dict[str, Callable[..., float]] = {
    "cosine": warmup_cosine, "linear": partial(warmup_stable_decay, decay=1.0),
    "wsd": warmup_stable_decay}
