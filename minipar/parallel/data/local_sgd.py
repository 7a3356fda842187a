"""Local SGD: each rank of dp trains alone for k steps; then the parameters are averaged.

    rank 0   w ─ step ─ step ─ step ─┐
                                     ├─ average ─ step ─ step ─ step ─ …      every=3
    rank 1   w ─ step ─ step ─ step ─┘

A rank sends 2Ψ(p-1)/p elements every k steps, instead of every step, and the ranks drift apart in
between.  So this does not equal training in one process.  What it equals is in
`local_sgd_by_copies.py`: p copies of the model, in one process.  Each rank divides its losses by
its own targets, so the learning rate is that of one rank.  Optimizer states are not averaged.
Stich 2019, arXiv 1805.09767; McMahan et al. 2017.
"""

from collections.abc import Sequence
from typing import Any

from ...comm import Communicator
from ...comm.collectives import all_reduce, sum_over_ranks
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ..strategy import Microbatch, sum_targets
from .ddp import DistributedDataParallel


class LocalSGD(DistributedDataParallel):
    """Sums no gradients over dp; averages the parameters over dp after every `every` steps."""

    summed_over = ("cp",)           # the ranks of cp have parts of the same sequences

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, every: int = 4,
                 **options: Any):
        if every < 1:
            raise ValueError(f"every={every}: parameters are averaged after a number of steps >= 1")
        for axis in ("ep", "replicate"):
            if isinstance(ranks, DeviceMesh) and axis in ranks:
                raise ValueError(f"local SGD trains each rank of dp alone, with all parameters: "
                                 f"leave {axis} out, or choose another strategy")
        self.every, self.num_steps = every, 0
        super().__init__(model, ranks, **options)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """The gradients of this rank's rows; the mean of the losses of all ranks of dp."""
        apart = self.along("pp", "cp", "tp")
        num_targets = sum_targets(apart, self.count_targets(microbatches), len(microbatches))
        self.wire.start_batch(scale)
        loss = self.run_batch(microbatches, num_targets / scale, seed, step)
        return sum_over_ranks(self.comm, loss) / scale / self.dp.size

    def after_step(self) -> None:
        """After every `every` steps, average the parameters."""
        self.num_steps += 1
        if self.num_steps % self.every == 0:
            for slab in self.stages.whole_slabs:
                all_reduce(self.dp, slab.data, out=slab.data)
                slab.data /= self.dp.size
