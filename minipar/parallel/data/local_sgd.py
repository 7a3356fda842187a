"""Local SGD: each rank of dp trains alone for k steps; then the parameters are averaged.

    rank 0   w ─ step ─ step ─ step ─┐
                                     ├─ average ─ step ─ step ─ step ─ …      every=3
    rank 1   w ─ step ─ step ─ step ─┘

    every k-th step     w ← Σᵣ wᵣ / p          (and in each of the first `average_first` steps)

A rank sends 2Ψ(p-1)/p elements every k steps, instead of every step, and the ranks drift apart in
between.  So this does not equal training in one process.  It equals training p copies of the model
in one process (`apart_by_copies.py`).  If the losses of all ranks have the same curvature, the mean
of their parameters is as in data parallelism, for every k.  Otherwise the fixed point moves.

Optimizer states are the ranks' own ("kept"), or averaged with the parameters, for another 2Ψ(p-1)/p
elements each ("averaged"), or set to 0 ("reset").  With every=1, SGD and as many targets on each
rank, local SGD is data parallelism if the momentum is kept or averaged.  The mean of the momenta is
then the momentum of the mean.  With Adam it never is.  Stich 2019, arXiv 1805.09767; McMahan et al.
2017; post-local: Lin et al. 2020, arXiv 1808.07217.
"""

from itertools import chain
from typing import Any

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ...optim import Optimizer
from .trained_apart import TrainedApart, check_every

LOCAL_STATES = ("kept", "averaged", "reset")
CODES_MESSAGE = ("local_states=averaged: codes of 8 bits have no mean: choose kept or reset, or an "
                 "optimizer other than adamw_8bit")


class LocalSGD(TrainedApart):
    """Averages the parameters over dp after every `every` steps."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, every: int = 4,
                 local_states: str = "kept", average_first: int = 0, **options: Any):
        check_every(every)
        if local_states not in LOCAL_STATES:
            raise ValueError(f"local_states={local_states!r}: choose from "
                             f"{', '.join(LOCAL_STATES)}")
        self.every, self.local_states, self.average_first = every, local_states, average_first
        super().__init__(model, ranks, **options)

    def update(self, optimizer: Optimizer) -> None:
        """Step; after every `every` steps, average the parameters."""
        optimizer.step()
        step = optimizer.num_steps
        if step % self.every and step > self.average_first:
            return
        for slab in self.slabs:
            slab.data[...] = self.mean(slab.data)
        if self.local_states == "kept":
            return
        for state in chain(*map(dict.values, optimizer.local_states())):
            if self.local_states == "averaged" and state.dtype.kind != "f":
                raise ValueError(CODES_MESSAGE)
            state[...] = self.mean(state) if self.local_states == "averaged" else 0
