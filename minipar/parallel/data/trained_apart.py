"""Ranks of dp that train apart: each has its own parameters, and steps by its own gradient.

    rank 0   w₀ ─ step ─ step ─ step ─┐               what is exchanged, and when, is
                                      ├─ exchange ─ … in local_sgd.py, diloco.py, gossip.py,
    rank 1   w₁ ─ step ─ step ─ step ─┘               elastic_averaging.py and delayed_averaging.py

Each rank divides its losses by its own targets, so the learning rate is that of one rank.  The
model that is evaluated, and that a checkpoint has, is what the ranks agree on: by default the mean
of their parameters.  So steps after the last exchange count too.  Beside this mean, a checkpoint
has the arrays in which the ranks differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...backend import Array, asarray_like
from ...comm import Communicator
from ...comm.collectives import all_reduce, sum_over_ranks
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ...optim import Optimizer
from ..strategy import Microbatch, sum_targets
from .ddp import DistributedDataParallel


class TrainedApart(DistributedDataParallel):
    """Base of these strategies; a subclass exchanges parameters, or late gradients, in `update`."""

    summed_over = ("cp",)           # the ranks of cp have parts of the same sequences

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, **options: Any):
        for axis in ("ep", "replicate"):
            if isinstance(ranks, DeviceMesh) and axis in ranks:
                raise ValueError(f"each rank of dp trains alone, with all parameters: leave {axis} "
                                 "out, or choose another strategy")
        super().__init__(model, ranks, **options)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """The gradients of this rank's rows; the mean of the losses of all ranks of dp."""
        apart = self.along("pp", "cp", "tp")
        num_targets = sum_targets(apart, self.count_targets(microbatches), len(microbatches))
        self.wire.start_batch(scale)
        loss = self.run_batch(microbatches, num_targets / scale, seed, step)
        return sum_over_ranks(self.comm, loss) / scale / self.dp.size

    def mean(self, array: Array) -> Array:
        """A new array: the mean over the ranks of dp.  Collective."""
        return all_reduce(self.dp, array) / self.dp.size

    def consensus(self) -> list[Array]:
        """The parameters that the ranks agree on, (n,) for each slab.  Collective."""
        return [self.mean(slab.data) for slab in self.slabs]

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of the parameters that the ranks agree on, by full name.  Collective."""
        with self.dp.labelled("state"):
            return self.slabs.named(self.consensus())

    def rank_state(self, optimizer: Optimizer) -> dict[str, Array]:
        """The arrays (not copies) in which this rank differs from others, by name.  Collective."""
        return {f"{i}/parameters": slab.data for i, slab in enumerate(self.slabs)} | {
            f"{i}/{name}": array for i, states in enumerate(optimizer.local_states())
            for name, array in states.items()}

    def load_rank_state(self, optimizer: Optimizer, state: Mapping[str, np.ndarray]) -> None:
        """Take what `rank_state` gave, unless names or shapes differ."""
        own = self.rank_state(optimizer)
        if all(name in state and state[name].shape == array.shape for name, array in own.items()):
            for name, array in own.items():
                array[...] = asarray_like(state[name], array)


def check_every(every: int) -> None:
    """Raise ValueError unless `every` is a number of steps."""
    if every < 1:
        raise ValueError(f"every={every}: parameters are exchanged after a number of steps >= 1")
