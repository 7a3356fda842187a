"""Delayed gradient averaging, specified: copies of a model in one process, without a message.

    copy i    wᵢ ← wᵢ - step of (gᵢ,t - gᵢ,t-D + ḡt-D)          ḡ = the mean of the copies' gᵢ

`delayed_averaging.py` gives the same with a copy on each rank.
"""

import copy
from collections.abc import Sequence

import numpy as np

from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Module
from ...nn.slab import Buffers
from ...optim import Optimizer
from ..strategy import Microbatch, Strategy


class DelayedByCopies(Strategy):
    """Trains `num_copies` copies of `model` on one rank; `slabs` are those of all copies."""

    def __init__(self, model: Module, comm: Communicator, num_copies: int, delay: int):
        self.copies = [model, *(copy.deepcopy(model) for _ in range(num_copies - 1))]
        super().__init__(model, comm)
        self.slabs = Buffers(slab for each in self.copies for slab in each.slabs)
        self.delay = delay
        self.gradients: list = []           # of all steps: those of all slabs

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

    def update(self, optimizer: Optimizer) -> None:
        """Correct the gradients of `delay` steps ago, and step."""
        self.gradients.append([slab.complete_grad().copy() for slab in self.slabs])
        if len(self.gradients) > self.delay:
            before = self.gradients[-1 - self.delay]
            each = len(self.model.slabs)
            for i, slab in enumerate(self.slabs):
                same = before[i % each::each]           # of all copies
                slab.grad += sum(same) / len(same) - before[i]
        optimizer.step()

    def state_dict(self) -> dict[str, np.ndarray]:
        """The mean of the copies' parameters by name."""
        each = len(self.model.slabs)
        return self.model.slabs.named([
            sum(slab.data for slab in self.slabs[i::each]) / len(self.copies)
            for i in range(each)])
