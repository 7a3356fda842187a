"""Loss scaling: multiply the loss, so that fewer gradients are too small for a narrow format.

    loss · 2¹⁶ ─▶ backward ─▶ gradients · 2¹⁶ ─▶ finite? ─ yes ─▶ divide by 2¹⁶, clip, step
                                                    └──── no ──▶ skip the step, halve the scale

float16 has no number between 0 and 2⁻²⁴, where many gradients lie.  By default the scale is a power
of two, so no digit changes.  It is kept as large as possible: doubled after `interval` steps
without overflow, halved when a gradient, or the loss itself, overflows.

    rank 0   its shards: finite    ─┐            An overflow may show on one rank alone.  If the
    rank 1   its shards: infinite  ─┼─▶ Σ = 1    others stepped, parameters and scales would differ
    rank 2   its shards: finite    ─┘   skip     from then on.  So all ranks skip the step, or none.

Micikevicius et al. 2018, section 3.2; the numbers are PyTorch's (torch.amp.GradScaler).
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..backend import l2_blocks
from ..comm import Communicator
from ..comm.collectives import sum_over_ranks
from ..nn import FlatBuffer

LARGEST = 1e30      # with a larger scale the scaled loss may be too large for float32


class HasGradients(Protocol):
    """A strategy, as far as loss scaling knows it: this rank's gradients, and all the ranks."""

    slabs: Sequence[FlatBuffer]
    comm: Communicator


def unscale(strategy: HasGradients, scale: float) -> bool:
    """Collective.  Divide all gradients by `scale`; return whether all are finite on every rank.

    If one is not, all are left as they are, and the step must not be taken.  Call it before
    clipping, which needs the norm of the unscaled gradients.  It costs an all-gather of 8 bytes
    from each rank, labelled control.
    """
    grads = [slab.complete_grad() for slab in strategy.slabs]
    num_bad = sum(not np.isfinite(g).all() for grad in grads for (g,) in l2_blocks(grad))
    if sum_over_ranks(strategy.comm, float(num_bad)):
        return False
    for grad in grads:
        grad *= 1 / scale
    return True


class LossScaler:
    """The `scale` of the loss, which `update` keeps as large as overflows allow.

    With growth = backoff = 1 it never changes.  Raises ValueError for impossible settings.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5,
                 interval: int = 2000):
        if not 0 < scale < math.inf:
            raise ValueError(f"a scale is a number > 0, not {scale}")
        if growth < 1 or not 0 < backoff <= 1 or interval < 1:
            raise ValueError("growth is at least 1, backoff in (0, 1] and interval at least 1, not "
                             f"{growth}, {backoff} and {interval}")
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.num_good = 0           # steps since the last overflow, or since `interval` good ones
        self.num_skipped = 0        # steps that overflowed, in all
        self.num_stuck = 0      # consecutive overflows that a smaller scale could not prevent

    @property
    def can_shrink(self) -> bool:
        """True if a smaller scale may prevent an overflow: the scale is dynamic, and above 1.

        At 1 nothing is scaled: activations, or the gradients themselves, overflow.
        """
        return self.backoff < 1 and self.scale > 1

    def update(self, found_inf: bool) -> None:
        """Adapt the scale after a step; `found_inf`: a gradient or the loss overflowed."""
        self.num_stuck = self.num_stuck + 1 if found_inf and not self.can_shrink else 0
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
        """The state that a resumed run continues from."""
        return {"scale": self.scale, "num_good": self.num_good, "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from the state of `state_dict`."""
        self.scale, self.num_good = state["scale"], state["num_good"]
        self.num_skipped = state["num_skipped"]
