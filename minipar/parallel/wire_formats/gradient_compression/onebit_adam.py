"""1-bit Adam: Adam whose momentum is sent as signs, once its variances have settled.

    first `start` steps    g = Σ gradients      m ← β₁ m + (1 - β₁) g      v ← β₂ v + (1 - β₂) g²
    afterwards             mᵣ = β₁ m / p + (1 - β₁) gᵣ on each of p ranks  m ← signs of mᵣ, summed
                                                                           v stays as it is
    w ← w - lr m / (√v + ε)

Adam is not linear in the gradient, so error feedback on gradients does not help it.  Once v is
fixed, the step is linear in m: m goes through the sum of signs, with its two errors (`signs.py`).
There is no bias correction, and v averages about 1/(1 - β₂) steps.  With a `start` below that, v
stays too small for ever, and the steps too long.  Let f be the share of the first steps, whose
gradients are sent in full.  Then the wire sends 1/(f + (1 - f)/32) times fewer bytes than float32.

Where a gradient is always 0 (padding, an unused token), v is 0, but the wire sends + or - s all the
same, and w would run away.  So where v is 0, the step is 0.  The wire gives the step's direction,
m / (√v + ε), to an SGD without momentum and clipping, whose weight decay is then AdamW's.

Tang et al. 2021, arXiv 2102.02888.
"""

import numpy as np

from ....comm import Communicator
from .signs import Signs
from .tensor_wire import Tensors, sum_together


class OneBitAdam(Signs):
    """Sends gradients in full for `start` steps, and signs of momentum from then on."""

    has_momentum = True

    def __init__(self, start: int = 50, beta1: float = 0.9, beta2: float = 0.97,
                 epsilon: float = 1e-8):
        super().__init__()
        if start < 1 or not 0 <= beta2 < 1:
            raise ValueError(f"start={start}, beta2={beta2}: choose at least one step, in which v "
                             "is learned, and a number from 0 to less than 1")
        self.start, self.betas, self.epsilon = start, (beta1, beta2), epsilon

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        beta1, beta2 = self.betas
        m = {name: self.remembered(f"{name}/m", g) for name, g in tensors.items()}
        v = {name: self.remembered(f"{name}/v", g) for name, g in tensors.items()}
        kept: Tensors = {}
        if step < self.start:
            for name, g in sum_together(comm, tensors).items():
                m[name] = beta1 * m[name] + (1 - beta1) * g
                v[name] = beta2 * v[name] + (1 - beta2) * g * g
        else:
            share = beta1 / comm.size       # the ranks' gradients are shares of a sum; so is this
            m, kept = self.sum_signs(comm, {name: share * m[name] + (1 - beta1) * g
                                            for name, g in tensors.items()})
        kept |= {f"{name}/m": array for name, array in m.items()}
        kept |= {f"{name}/v": array for name, array in v.items()}
        return {name: np.where(v[name] == 0, 0, m[name]) / (np.sqrt(v[name]) + self.epsilon)
                for name in tensors}, kept
