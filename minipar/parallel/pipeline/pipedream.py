"""PipeDream: a pipeline without a flush, whose gradients are of older weights.

    stage 0   F0 F1 F2 B0 F3 B1 F4 B2 …     F3 with the weights after B0's step: while other
    stage 1      F0 F1 B0 F2 B1 F3 B2 …     microbatches are on their way, a stage has stepped.
    stage 2         F0 B0 F1 B1 F2 B2 …     So no stage ever waits

Every microbatch is a batch of its own: as soon as a stage has its gradient, it steps.  Version v of
a stage are its weights after v steps.  F and B of microbatch k on stage s of p use

    stashed         version max(0, k - (p - 1 - s)), the newest when F begins; p - s are kept
    vertical sync   version max(0, k - (p - 1)) on all stages

Were B to use the newest version, it would compute the gradient of nothing.  A graph keeps the
arrays that its forward used; so a step writes into new ones.  A batch of `minipar train` is a
stream of microbatches, and the pipeline is drained at its end.  Late gradients want smaller steps:
with a delay of D steps and curvature λ, ηλ < 2 sin(π / (4D + 2)).

Narayanan et al. 2019, PipeDream (SOSP).  One process gives the same: `pipedream_by_versions.py`.
"""

from collections.abc import Sequence
from typing import Any

from ...autograd import count_targets
from ...backend import Array, record_allocation
from ...comm import Communicator
from ...comm.collectives import sum_over_ranks
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ...optim import Optimizer
from .. import errors
from ..strategy import Microbatch, Strategy, sum_targets
from .executor import RankBatch
from .schedule.actions import Action


class PipeDream(Strategy):
    """Each stage steps by `optimizer`, to be set before the first batch, after each microbatch.

    With `vertical_sync` a microbatch meets the same version on all stages.
    """

    optimizer: Optimizer

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, vertical_sync: bool = False,
                 **options: Any):
        is_other = options.pop("schedule", None) not in (None, "1f1b")
        super().__init__(model, ranks, **options)
        if is_other or self.pipeline is None or self.pp.size != self.comm.size:
            raise ValueError(errors.STAGES_ALONE_MESSAGE)
        if self.stages.shares:
            raise ValueError(errors.TIED_STAGES_MESSAGE)
        self.vertical_sync, self.per_step = vertical_sync, 1
        self.num_steps = self.first = 0         # of all batches; before this batch
        self.versions = {0: [slab.data for slab in self.slabs]}
        self.pipeline.batch_type = StreamBatch

    def version(self, k: int) -> int:
        """The version by which this stage computes microbatch k of a batch."""
        late = self.pp.size - 1 if self.vertical_sync else self.pp.size - 1 - self.pp.rank
        return self.first + max(0, k - late)

    def use(self, version: int) -> None:
        """Let the parameters be those of a version."""
        for slab, data in zip(self.slabs, self.versions[version]):
            slab.use_values(data)

    def step_stage(self, k: int) -> None:
        """Step after the backward of microbatch k, to new arrays if the old ones are still used."""
        slots = [parameter.slot for parameter in self.stages.used_in]
        changed = [slot.changed_at for slot in slots]
        oldest, newest = self.version(k + 1), self.versions[self.num_steps]
        self.use(self.num_steps)
        self.versions = {version: arrays for version, arrays in self.versions.items()
                         if version >= oldest}
        if self.versions:
            newest = [record_allocation("parameters", data.copy()) for data in newest]
        self.num_steps += 1
        self.versions[self.num_steps] = newest
        self.use(self.num_steps)
        self.optimizer.step()
        for slot, when in zip(slots, changed):      # graphs of older versions are sound
            slot.changed_at = when
        self.optimizer.zero_grad()

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Train on the microbatches, one after the other; the mean of their losses.  Collective."""
        if scale != 1:
            raise ValueError(errors.NO_LOSS_SCALE_MESSAGE)
        sum_targets(self.comm, 0, len(microbatches))        # as many on each rank
        self.first = self.num_steps
        loss = self.run_batch(microbatches, 1.0, seed, step)
        self.use(self.num_steps)
        return sum_over_ranks(self.comm, loss) / (self.num_steps - self.first)

    def step(self, optimizer: Optimizer) -> None:
        """Nothing: all stages have stepped."""

    def clip_grad_norm(self, max_norm: float) -> float:
        """Raise ValueError: there is no norm of all gradients."""
        raise ValueError(errors.NO_NORM_MESSAGE)


class StreamBatch(RankBatch):
    """A rank's work on a stream of microbatches, of which each stage steps as soon as it can."""

    strategy: PipeDream

    def forward(self, action: Action, x: Array | None) -> Array:
        """The output by the microbatch's version, or its loss, of its own batch's targets."""
        k, number = action.microbatch, self.strategy.per_step
        batch = self.microbatches[k - k % number:][:number]
        self.loss_divisor = sum(count_targets(each.targets, self.strategy.model.ignore_index)
                                for each in batch) or 1.0
        self.strategy.use(self.strategy.version(k))
        return super().forward(action, x)

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx by the version of the forward; the stage steps if its batch is complete."""
        k = action.microbatch
        self.strategy.use(self.strategy.version(k))
        dx = super().backward(action, grad)
        if (k + 1) % self.strategy.per_step == 0:
            self.strategy.step_stage(k)
        return dx
