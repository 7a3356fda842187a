"""Elastic averaging: a spring ties each rank's parameters to a centre, and pulls both.

    rank 0   w₀ ─ step ─ ⟩⟩ ─ step ─ …        d = wᵣ - c         before the step
    centre   c  ───────  ⟨⟨ ────────── …      wᵣ ← wᵣ - step - α d
    rank 1   w₁ ─ step ─ ⟩⟩ ─ step ─ …        c  ← c + α Σᵣ d

The ranks stay apart and explore; the centre is the model.  Ranks and centre pull each other in
every `every`-th step.  Here each rank has a copy of c, and an all-reduce of d sends 2Ψ(p-1)/p
elements.  With c on a server, a rank would send Ψ.  α = 0.9/p by default, as in the paper; c is
stable if p α < 1.  EASGD: Zhang, Choromanska & LeCun 2015, arXiv 1412.6651.
"""

from typing import Any

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_reduce
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ...optim import Optimizer
from .trained_apart import TrainedApart, check_every


class ElasticAveraging(TrainedApart):
    """Pulls parameters and their centre together by `pull`, the paper's α."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, every: int = 4,
                 pull: float | None = None, **options: Any):
        check_every(every)
        super().__init__(model, ranks, **options)
        self.every, self.pull = every, 0.9 / self.dp.size if pull is None else pull
        if not 0 < self.pull * self.dp.size < 1:
            raise ValueError(f"pull={self.pull:g} moves the centre from the ranks, or past them: "
                             f"choose a number between 0 and 1 / {self.dp.size}")
        self.centres = [slab.data.copy() for slab in self.slabs]

    def update(self, optimizer: Optimizer) -> None:
        """Step; in every `every`-th step, pull."""
        distances = []
        if (optimizer.num_steps + 1) % self.every == 0:
            distances = [slab.data - centre for slab, centre in zip(self.slabs, self.centres)]
        optimizer.step()
        for slab, centre, distance in zip(self.slabs, self.centres, distances):
            slab.data -= self.pull * distance
            centre += self.pull * all_reduce(self.dp, distance)

    def consensus(self) -> list[Array]:
        """The centre."""
        return self.centres

    def rank_state(self, optimizer: Optimizer) -> dict[str, Array]:
        """The base's state, and the centre."""
        return super().rank_state(optimizer) | {
            f"{i}/centre": centre for i, centre in enumerate(self.centres)}
