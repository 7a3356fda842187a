"""PipeDream: a pipeline without a flush, whose gradients are of older weights.

    stage 0   F0 F1 F2 B0 F3 B1 F4 B2 …     F3 uses the weights after B0's step: the stage steps
    stage 1      F0 F1 B0 F2 B1 F3 B2 …     while other microbatches are on their way, so that
    stage 2         F0 B0 F1 B1 F2 B2 …     no stage ever waits

Every microbatch is a batch of its own: as soon as a stage has its gradient, it steps.  Version v of
a stage are its weights after v steps.  F and B of microbatch k on stage s of p use

    stashed         version max(0, k - (p - 1 - s)), the newest when F begins; p - s versions kept
    vertical sync   version max(0, k - (p - 1)) on all stages

B uses the version that F used: with a newer one its result would be the gradient of no function.
A graph keeps the arrays that its forward used, so a step writes into new ones.  A batch of `minipar
train` is a stream of microbatches, and the pipeline is drained at its end.  Late gradients need
smaller steps: with a delay of D steps and curvature λ, SGD is stable if ηλ < 2 sin(π / (4D + 2)).

Narayanan et al. 2019, PipeDream (SOSP).  One process gives the same: `pipedream_by_versions.py`.
"""

from collections.abc import Sequence
from typing import Any

from ....autograd import count_targets
from ....backend import Array
from ....comm import Communicator
from ....comm.mesh import DeviceMesh
from ....nn import Module
from ....nn.parameter import changing_copies
from ....optim import Optimizer
from ... import errors
from ...strategy import Microbatch
from ..executor import RankBatch
from ..pipeline_only import PipelineOnly
from ..schedule.actions import BACKWARD, Action
from .versions import Versions


class StreamBatch(RankBatch):
    """A rank's work on a stream of microbatches; each stage steps as soon as it can."""

    strategy: "PipeDream"

    def do(self, action: Action, array: Array | None) -> Array | None:
        """The result by the microbatch's version of the weights; after a batch's last B, a step.

        The loss is divided by the number of targets of the microbatch's own batch.
        """
        strategy, k = self.strategy, action.microbatch
        batch = self.microbatches[k - k % strategy.per_step:][:strategy.per_step]
        self.loss_divisor = sum(count_targets(each.targets, strategy.model.ignore_index)
                                for each in batch) or 1.0
        strategy.versions.use(strategy.version(k))
        out = super().do(action, array)
        if action.kind == BACKWARD and (k + 1) % strategy.per_step == 0:
            strategy.step_stage(k)
        return out


class PipeDream(PipelineOnly):
    """A stage steps after each microbatch, by `optimizer`, which is set before the first batch.

    With `vertical_sync` a microbatch meets the same version on all stages.
    """

    steps_within_batch = True
    batch_type = StreamBatch
    optimizer: Optimizer

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, vertical_sync: bool = False,
                 **options: Any):
        super().__init__(model, ranks, **options)
        if self.stages.shares:
            raise ValueError(errors.TIED_STAGES_MESSAGE)
        self.vertical_sync, self.per_step = vertical_sync, 1
        self.versions, self.first = Versions(self.slabs), 0     # the newest before this batch

    def version(self, k: int) -> int:
        """The version by which this stage computes microbatch k of a batch."""
        late = self.pp.size - 1 if self.vertical_sync else self.pp.size - 1 - self.pp.rank
        return self.first + max(0, k - late)

    def step_stage(self, k: int) -> None:
        """Step after the backward of microbatch k, to new arrays if the old ones are still used."""
        self.versions.add(oldest=self.version(k + 1))
        with changing_copies(self.stages.used_in):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Train on the microbatches, one after the other; the mean of their losses.  Collective."""
        if scale != 1:
            raise ValueError(errors.NO_LOSS_SCALE_MESSAGE)
        self.first = self.versions.newest
        loss = super().forward_backward(microbatches, seed, step)       # a sum over the batches
        return loss / (self.versions.newest - self.first)

    def step(self, optimizer: Optimizer) -> None:
        """Nothing: all stages have stepped."""

    def clip_grad_norm(self, max_norm: float) -> float:
        """Raise ValueError: there is no norm of all gradients."""
        raise ValueError(errors.NO_NORM_MESSAGE)
