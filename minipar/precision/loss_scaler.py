"""Loss scaling: gradients too small for a narrow format are computed larger.

    loss · 2¹⁶ ─▶ backward ─▶ gradients · 2¹⁶ ─▶ finite? ─ yes ─▶ divide by 2¹⁶, clip, step
                                                    └──── no ──▶ skip the step, halve the scale

float16 has no number between 0 and 2⁻²⁴, where many gradients are.  The scale is a power of two, so
that no digit changes; it is as large as can be: doubled after `interval` steps that went well, and
halved when a gradient, or the loss itself, overflows.  Micikevicius et al. 2018, section 3.2; the
numbers are PyTorch's.
"""

import math

LARGEST = 1e30      # a loss times more than this may be no float32


class LossScaler:
    """`scale`, which `update` keeps as large as overflows allow.

    With growth = backoff = 1 it never changes.  Raises ValueError for what would not work.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5,
                 interval: int = 2000):
        if not 0 < scale < math.inf:
            raise ValueError(f"a scale is a number > 0, not {scale}")
        if growth < 1 or not 0 < backoff <= 1 or interval < 1:
            raise ValueError("growth is at least 1, backoff in (0, 1] and interval at least 1, not "
                             f"{growth}, {backoff} and {interval}")
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.num_good = 0           # steps since the scale last changed
        self.num_skipped = 0        # steps in all that were not taken

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller scale may help: a dynamic one, above 1.

        With 1 nothing is scaled, so what overflows is forward, or gradients by themselves.
        """
        return self.backoff < 1 and self.scale > 1

    def update(self, found_inf: bool) -> None:
        """After each step, or what was to be one: whether a gradient, or the loss, overflowed."""
        if found_inf:
            self.scale *= self.backoff
            self.num_good = 0
            self.num_skipped += 1
            return
        self.num_good += 1
        if self.num_good == self.interval:
            self.num_good = 0
            if self.scale * self.growth <= LARGEST:
                self.scale *= self.growth

    def state_dict(self) -> dict[str, float]:
        """What a run that is resumed goes on from."""
        return {"scale": self.scale, "num_good": self.num_good, "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from there."""
        self.scale, self.num_good = state["scale"], state["num_good"]
        self.num_skipped = state["num_skipped"]
