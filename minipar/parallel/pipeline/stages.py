"""Stages: the chain of a model's parts, cut into runs of parts that different ranks hold.

    embed │ h.0 │ h.1 │ h.2 │ h.3 │ head          the parts of a GPT
    ──── stage 0 ────┼──── stage 1 ─────          cuts = [3]: a new stage begins at part 3

Each rank keeps the parameters of its stages in one slab and drops the others.  If two ranks use one
weight, a tied embedding, both keep it.  Its gradients are summed once a batch, so that both ranks
take the same step, and the norm of all gradients counts it once.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_reduce
from ...nn import Module, Parameter, Slab
from ...nn.chain import chain
from ...nn.parameter import Unmaterialized
from ..errors import NEEDS_ALL_STAGES_MESSAGE, cuts_error, in_no_part_error, summed_already_error
from ..strategy import Microbatch, Strategy
from .cut import cut_evenly
from .schedule.actions import Placement
from .stage_slab import SlabLayout, StageBuffer, StageSlab


def layout_by_holders(slab: Slab, ranks_of: dict[Parameter, set[int]]
                      ) -> Mapping[tuple[int, ...], SlabLayout]:
    """The slab's parameters by the ranks that share them; under () those that one rank holds."""
    groups: dict[tuple[int, ...], list] = {(): []}
    for segment, parameter in zip(slab.segments, slab.parameters):
        holders = tuple(sorted(ranks_of[parameter]))
        groups.setdefault(holders if len(holders) > 1 else (), []).append((segment, parameter))
    return groups


class Staged(Strategy):
    """Base of the strategies that cut `model` into stages, stage s on rank placement[s] of `comm`.

    `cuts` are the parts at which stages 1, 2, … begin; without them the stages have as equal
    numbers of parameters as the parts allow.  All ranks are given the same microbatches: the first
    stage reads the inputs, the last one the targets, and every stage the shapes.
    """

    def __init__(self, model: Module, comm: Communicator, placement: Placement,
                 cuts: Sequence[int] | None = None):
        super().__init__(model, comm)
        parts = chain(model)
        if cuts is None:
            cuts = cut_evenly([part.num_parameters() for part in parts], len(placement))
        bounds = [0, *cuts, len(parts)]
        if len(bounds) != len(placement) + 1 or any(a >= b for a, b in pairwise(bounds)):
            raise cuts_error(cuts, len(parts), len(placement))
        self.placement, self.num_stages, self.cuts = placement, len(placement), list(cuts)
        self.stages = [parts[start:stop] for start, stop in pairwise(bounds)]
        self.has_last = placement[-1] == comm.rank
        self._summed = False
        ranks_of = self._ranks_of_parameters()
        self._make_slabs(ranks_of)
        self._drop_weights_of_others(ranks_of)

    def _ranks_of_parameters(self) -> dict[Parameter, set[int]]:
        """The ranks that hold each parameter; raises ValueError if a parameter is in no stage."""
        ranks_of: dict[Parameter, set[int]] = {}
        for stage, parts in enumerate(self.stages):
            for parameter in (p for part in parts for p in part.parameters()):
                ranks_of.setdefault(parameter, set()).add(self.placement[stage])
        lost = [name for name, p in self.model.named_parameters() if p not in ranks_of]
        if lost:
            raise in_no_part_error(lost)
        return ranks_of

    def _make_slabs(self, ranks_of: dict[Parameter, set[int]]) -> None:
        """Move this rank's parameters into slabs: its own, and those it shares.  Collective."""
        self.stage_slabs: list[StageSlab] = []
        shared: list[tuple[Communicator, StageSlab]] = []
        for slab in self.model.slabs:
            for holders, held in layout_by_holders(slab, ranks_of).items():
                layouts = [[(segment, parameter) for segment, parameter in held
                            if rank in ranks_of[parameter]] for rank in range(self.comm.size)]
                is_copy = bool(holders) and self.comm.rank != holders[0]
                self.stage_slabs.append(
                    StageSlab(layouts, is_copy, slab.data, self.comm, tp=slab.comm, ep=slab.ep))
                if holders:
                    comm = self.comm.split(0 if self.comm.rank in holders else None)
                    if comm is not None:
                        shared.append((comm, self.stage_slabs[-1]))
        # what this rank optimizes and what it sums; FSDP puts shards in their place
        self.slabs: Sequence[StageBuffer] = self.stage_slabs
        self.shared: Sequence[tuple[Communicator, StageBuffer]] = shared
        self.model.slabs = []

    def _drop_weights_of_others(self, ranks_of: dict[Parameter, set[int]]) -> None:
        """Make the parameters of other ranks shapes without values."""
        for parameter, ranks in ranks_of.items():
            if self.comm.rank not in ranks:
                parameter.data = Unmaterialized(parameter.shape, parameter.dtype,
                                                NEEDS_ALL_STAGES_MESSAGE)
                parameter.slot.get_grad_buffer = parameter.slot.grad = None

    def forward_context(self) -> AbstractContextManager:
        """Raise ValueError: a rank alone cannot compute a loss; forward_backward does."""
        raise ValueError(NEEDS_ALL_STAGES_MESSAGE)

    def backward(self, loss: Tensor) -> None:
        """Raise ValueError: a rank alone cannot compute a loss; forward_backward does."""
        raise ValueError(NEEDS_ALL_STAGES_MESSAGE)

    def rows(self, num_rows: int) -> range:
        """All rows: every rank is given the whole batch."""
        return range(num_rows)

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """The number of targets on the last stage, 0 on the others, so that each counts once."""
        return super().count_targets(microbatches) if self.has_last else 0

    def run_stage(self, stage: int, x: Tensor | Array) -> Tensor:
        """The output of one of this rank's stages for its input."""
        return self.model.run_parts(self.stages[stage], x)

    def check_fresh(self) -> None:
        """Raise ValueError if shared weights have gradients that were summed over ranks already."""
        if self._summed and any(slab.has_grad for _, slab in self.shared):
            raise summed_already_error()
        self._summed = False

    def after_backward(self) -> None:
        """Sum the gradients of weights that several ranks hold, one all-reduce for each slab."""
        for slab in self.slabs:
            slab.complete_grad()
        for comm, slab in self.shared:
            all_reduce(comm, slab.grad, out=slab.grad)
        self._summed = True
