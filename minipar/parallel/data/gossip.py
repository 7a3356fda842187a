"""Gossip on a ring: after each step a rank averages its parameters with its two neighbours'.

    rank   0 ─── 1 ─── 2 ─── 3         w₁ ← (w₀ + w₁ + w₂)/3 - step of rank 1, from the old w
           └─────────────────┘

With p > 2 a rank sends 2Ψ elements over one hop; an all-reduce sends 2Ψ(p-1)/p over 2(p-1) hops.
The old parameters travel while the optimizer computes the step.  The mean of all parameters moves
by the mean of the steps.  In a step the differences from the mean shrink by the factor
(1 + 2 cos(2π/p))/3: 0.33, 0.80, 0.997 for 4, 8, 64 ranks.  So long rings agree slowly.  Two ranks
take the mean of both.  Lian et al. 2017, arXiv 1705.09056.
"""

import numpy as np

from ...comm.work import wait_all
from ...optim import Optimizer
from .trained_apart import TrainedApart


class Gossip(TrainedApart):
    """Averages parameters with the neighbours on the ring of dp, in every step."""

    def update(self, optimizer: Optimizer) -> None:
        """Step from the old parameters, and move to their mean over the neighbours."""
        comm, neighbours = self.dp, sorted({(self.dp.rank + d) % self.dp.size for d in (-1, 1)}
                                           - {self.dp.rank})
        old = [slab.data.copy() for slab in self.slabs]
        theirs = [[np.empty_like(array) for _ in neighbours] for array in old]
        with comm.labelled("gossip"):
            requests = [comm.irecv(out, peer) for arrays in theirs
                        for out, peer in zip(arrays, neighbours)]
            requests += [comm.isend(array, peer) for array in old for peer in neighbours]
            optimizer.step()
            wait_all(requests)
        for slab, own, arrived in zip(self.slabs, old, theirs):
            slab.data += sum(arrived, start=own) / (len(arrived) + 1) - own
