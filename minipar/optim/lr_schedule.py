"""Learning-rate schedules: functions of the step number, without state."""

import math


def warmup_cosine(step: int, peak: float, num_warmup: int, num_steps: int,
                  floor: float = 0.0) -> float:
    """The learning rate of step 0, 1, …: linear up to `peak`, then half a cosine down to `floor`.

    Step `num_warmup` - 1 alone is at the peak; step `num_steps` - 1 is at the floor, and so are any
    after it (Loshchilov & Hutter 2017, equation 5, without restarts).
    """
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup + 1) / max(1, num_steps - num_warmup)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
