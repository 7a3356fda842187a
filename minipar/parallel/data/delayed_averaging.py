"""Delayed gradient averaging: a rank steps by its own gradient, and corrects it D steps later.

    step t        w ← w - η gₜ                            own gradient, at once
    step t + D    w ← w - η (ḡₜ - gₜ)                     once its mean over the ranks is here

    rank 0   ▓ t ▓ ▓ t+1 ▓ ▓ t+2 ▓        D = 2: the message of step t has the time of two steps,
    message    ░░░░░ t ░░░░░              so latency costs nothing as long as it needs no more

Step t and the correction that is due then are one step by gₜ - gₜ₋D + ḡₜ₋D, whatever the optimizer.
A rank sends as much as in data parallelism, 2Ψ(p-1)/p elements a step.  It keeps 2DΨ elements:
its own gradients of D steps, and their sums.  D = 0 is data parallelism.  The corrections that are
still to come add up to 0 over the ranks.  So with SGD they would not change the mean of the ranks'
parameters, which a checkpoint has.

A rank clips its own gradient.  A correction is added in step t + D, with the learning rate of that
step.  Zhu et al. 2021, Delayed gradient averaging (NeurIPS).  One process gives the same:
`apart_by_copies.py`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...backend import Array, asarray_like
from ...comm import Communicator
from ...comm.collectives import all_reduce
from ...comm.mesh import DeviceMesh
from ...comm.work import Work, start_work, wait_all
from ...nn import Module
from ...optim import Optimizer
from .trained_apart import TrainedApart


class DelayedAveraging(TrainedApart):
    """Each rank of dp steps by its own gradients, corrected `delay` steps later."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, delay: int = 1,
                 **options: Any):
        if delay < 0:
            raise ValueError(f"delay={delay}: gradients are corrected a number of steps >= 0 later")
        self.delay = delay
        self.pending: list[tuple[list[Array], list[Array], list[Work]]] = []    # oldest first
        super().__init__(model, ranks, **options)

    def update(self, optimizer: Optimizer) -> None:
        """Begin to sum the gradients; add the correction of `delay` steps ago to them; step."""
        own = [slab.complete_grad().copy() for slab in self.slabs]
        sums = [gradient.copy() for gradient in own]
        self.pending.append((own, sums, [start_work(all_reduce, self.dp, array, out=array)
                                         for array in sums]))
        if len(self.pending) > self.delay:
            for slab, before, total in zip(self.slabs, *self.arrived()):
                slab.grad += total / self.dp.size - before
        optimizer.step()

    def arrived(self) -> tuple[list[Array], list[Array]]:
        """Take the oldest gradients, own and summed, once their messages have arrived."""
        own, sums, works = self.pending.pop(0)
        wait_all(works)
        return own, sums

    def rank_state(self, optimizer: Optimizer) -> dict[str, Array]:
        """The base's state, and the gradients that are to be corrected.  Collective."""
        self.pending = [(*self.arrived(), []) for _ in range(len(self.pending))]
        return super().rank_state(optimizer) | {
            f"{step}/{name}/{i}": array for step, (own, sums, _) in enumerate(self.pending)
            for name, arrays in (("own", own), ("sum", sums)) for i, array in enumerate(arrays)}

    def load_rank_state(self, optimizer: Optimizer, state: Mapping[str, np.ndarray]) -> None:
        """Take what `rank_state` gave, unless names or shapes differ."""
        super().load_rank_state(optimizer, state)
        while f"{len(self.pending)}/own/0" in state and all(
                state.get(f"{len(self.pending)}/own/{i}", slab.data[:0]).shape == slab.data.shape
                for i, slab in enumerate(self.slabs)):
            own, sums = ([asarray_like(state[f"{len(self.pending)}/{name}/{i}"], slab.data)
                          for i, slab in enumerate(self.slabs)] for name in ("own", "sum"))
            self.pending.append((own, sums, []))
