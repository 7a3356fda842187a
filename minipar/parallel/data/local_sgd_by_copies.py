"""Local SGD, specified: copies of a model in one process, which train apart and are averaged.

    copy 0   rows 0 … 3   w₀ ─ step ─ step ─┐
                                            ├─ mean ─▶ w₀ = w₁ ─ step ─ …
    copy 1   rows 4 … 7   w₁ ─ step ─ step ─┘

`local_sgd.py` gives the same with a copy on each rank.  Stich 2019, arXiv 1805.09767.
"""

import copy
from collections.abc import Sequence

from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Module
from ...nn.slab import Buffers
from ..strategy import Microbatch, Strategy


class LocalSGDByCopies(Strategy):
    """Trains `num_copies` copies of `model` on one rank; `slabs` are those of all copies."""

    def __init__(self, model: Module, comm: Communicator, num_copies: int, every: int):
        self.copies = [model, *(copy.deepcopy(model) for _ in range(num_copies - 1))]
        super().__init__(model, comm)
        self.slabs = Buffers(slab for each in self.copies for slab in each.slabs)
        self.every, self.num_steps = every, 0

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Each copy's gradients, of its part of every microbatch; the mean of their losses."""
        losses = []
        for i, each in enumerate(self.copies):
            self.model = each
            mine = [Microbatch(*(array[slice(*chunk_bounds(len(m.inputs), len(self.copies))[i])]
                                 for array in m)) for m in microbatches]
            losses.append(super().forward_backward(mine, seed, step, scale))
        self.model = self.copies[0]
        return sum(losses) / len(losses)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Clip each copy by its own norm; return that of the first."""
        slabs, norms = self.slabs, []
        for each in self.copies:
            self.slabs = each.slabs
            norms.append(super().clip_grad_norm(max_norm))
        self.slabs = slabs
        return norms[0]

    def after_step(self) -> None:
        """After every `every` steps, average the parameters of the copies."""
        self.num_steps += 1
        if self.num_steps % self.every == 0:
            for slabs in zip(*(each.slabs for each in self.copies)):
                mean = sum(slab.data for slab in slabs) / len(slabs)
                for slab in slabs:
                    slab.data[...] = mean
