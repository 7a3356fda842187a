"""2BW: a pipeline without a flush with two versions of the weights, SGD that is one step late.

    W(t+1) = W(t) - step of ∇f(W(max(0, t - 1)))            batches t of m microbatches

    stage 0   F F F F│F F B F B F B B│F …                   m >= p: when the first microbatch of
    stage 1     F F B F│F B F B F B B│…                     batch t begins, all stages have stepped
                     W(0)    W(0)      W(1)                 by the gradients of batch t - 2

F and B of a microbatch use the same version on all stages, whatever p is.  So two versions are
enough, where a stage of PipeDream keeps up to p.  A stream is the microbatches of one call of
`forward_backward`.  In it, microbatches of two batches are on their way at once.  The older version
goes on to the next stream, and into the checkpoint.  Narayanan et al. 2021, arXiv 2006.09503.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....backend import Array, asarray_like
from ....comm import Communicator
from ....comm.mesh import DeviceMesh
from ....nn import Module
from ....optim import Optimizer
from ...strategy import Microbatch
from .pipedream import PipeDream


class TwoBW(PipeDream):
    """Each stage steps by `optimizer` after every `microbatches_per_step` (by default, p)."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh,
                 microbatches_per_step: int | None = None, **options: Any):
        super().__init__(model, ranks, **options)
        self.per_step = self.pp.size if microbatches_per_step is None else microbatches_per_step
        if self.per_step < self.pp.size:
            raise ValueError(f"microbatches_per_step={self.per_step}: two versions are enough for "
                             f"at least {self.pp.size} microbatches, as many as stages")

    def version(self, k: int) -> int:
        """The version of microbatch k: one step older than what the batches before it leave."""
        return max(0, self.first + k // self.per_step - 1)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Train on the microbatches; the mean of the losses of all steps.  Collective."""
        if len(microbatches) % self.per_step:
            raise ValueError(f"{len(microbatches)} microbatches in steps of {self.per_step}: give "
                             "a multiple (--microbatches)")
        return super().forward_backward(microbatches, seed, step, scale)

    def rank_state(self, optimizer: Optimizer) -> dict[str, Array]:
        """The older version, which a checkpoint keeps by rank."""
        return {f"older/{i}": array for i, array in enumerate(self.versions[min(self.versions)])}

    def load_rank_state(self, optimizer: Optimizer, state: Mapping[str, np.ndarray]) -> None:
        """Go on with a checkpoint's older version, beside its parameters, the newest version."""
        newest = [slab.data for slab in self.slabs]
        if any(state.get(f"older/{i}", data[:0]).shape != data.shape
               for i, data in enumerate(newest)):
            return                              # the state of other stages: begin without a delay
        older = [asarray_like(state[f"older/{i}"], data) for i, data in enumerate(newest)]
        self.versions.clear()
        self.versions |= {optimizer.num_steps - 1: older, optimizer.num_steps: newest}
