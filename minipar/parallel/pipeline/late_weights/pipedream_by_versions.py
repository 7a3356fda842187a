"""PipeDream and 2BW, specified: one process that keeps all versions of the weights.

    the gradient of step t      of the whole loss, stage s with its weights after rule(t, s) steps
    step t                      from the newest weights, by that gradient

`pipedream.py` and `two_bw.py` give the same with a stage on each rank.
"""

from collections.abc import Callable, Sequence

from ....comm import Communicator
from ....nn import Module
from ....nn.chain import chain
from ....optim import Optimizer
from ...strategy import Microbatch, Strategy
from ..cut_points import cut_evenly

Rule = Callable[[int, int], int]        # from step and stage to a version


def stashed(num_stages: int) -> Rule:
    """PipeDream: stage s is p - 1 - s steps late."""
    return lambda step, stage: max(0, step - (num_stages - 1 - stage))


def vertical(num_stages: int) -> Rule:
    """PipeDream with vertical sync: all stages are as late as the first."""
    return lambda step, stage: max(0, step - (num_stages - 1))


def two_versions(num_stages: int) -> Rule:
    """2BW: all stages are one step late."""
    return lambda step, stage: max(0, step - 1)


class PipeDreamByVersions(Strategy):
    """Trains `model` on one rank with the versions that `rule` says; set `optimizer` first."""

    optimizer: Optimizer

    def __init__(self, model: Module, comm: Communicator, num_stages: int, rule: Rule,
                 microbatches_per_step: int = 1):
        super().__init__(model, comm)
        parts = chain(model)
        cuts = cut_evenly([part.num_parameters() for part in parts], num_stages)
        self.stage_of = {parameter: sum(i >= cut for cut in cuts)
                         for i, part in enumerate(parts) for parameter in part.parameters()}
        self.rule, self.per_step = rule, microbatches_per_step
        self.history: list[dict] = []           # of each version, by parameter: its values

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Train on the microbatches; the mean of the losses of all steps."""
        losses = []
        for t in range(len(microbatches) // self.per_step):
            self.history.append({p: p.data.copy() for p in self.stage_of})
            for parameter, stage in self.stage_of.items():
                parameter.data[...] = self.history[self.rule(t, stage)][parameter]
            batch = microbatches[t * self.per_step:][:self.per_step]
            losses.append(super().forward_backward(batch, seed, step))
            for parameter, values in self.history[-1].items():
                parameter.data[...] = values
            self.optimizer.step()
            self.optimizer.zero_grad()
        return sum(losses) / len(losses)

    def step(self, optimizer: Optimizer) -> None:
        """Nothing: all steps are taken."""
