"""Stages: the chain of a model's parts, cut into runs of parts that different ranks hold.

    embed │ h.0 │ h.1 │ h.2 │ h.3 │ head          the parts of a GPT
    ──── stage 0 ────┼──── stage 1 ─────          cuts = [3]: a new stage begins at part 3

    rank 0   [ wpe | h.0 h.1 ]         [ wte ]    its own parameters are one slab,
    rank 1   [ h.2 h.3 | ln_f ]        [ wte ]    those that ranks share another

Each rank keeps the parameters of its stages and drops the others.  If two ranks use one weight, a
tied embedding, both keep it.  Its gradients are summed once a batch, so that both ranks take the
same step.  The norm of all gradients counts this weight on the first of the two ranks alone.
Without a pipeline there is one stage, the whole model with its slabs (OneStage).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...autograd import Tensor
from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.collectives import all_gather
from ...nn import Module, Parameter, Slab
from ...nn.chain import chain
from ...nn.module import ChainPart, ModuleList
from ...nn.parameter import Unmaterialized
from ...nn.slab import Buffers, Segment
from ..errors import NEEDS_ALL_STAGES_MESSAGE, cuts_error, in_no_part_error
from ..flats import Flat, end_to_end, gather_parameter
from .cut_points import cut_evenly
from .schedule.actions import Placement, stages_on

SlabLayout = Sequence[tuple[Segment, Parameter]]    # of one rank


class StageSlab(Slab):
    """A slab with the parameters of layouts[r] on rank r of `pp`, whose values are in `slab`.

    Every rank knows all layouts.  `is_copy`: another rank counts it in norms.
    """

    def __init__(self, slab: Slab, layouts: Sequence[SlabLayout], pp: Communicator, is_copy: bool):
        super().__init__([(segment.name, parameter) for segment, parameter in layouts[pp.rank]],
                         slab.data)
        self.pp, self.tp, self.ep, self.is_copy = pp, slab.tp, slab.ep, is_copy
        self.layout = [segment for layout in layouts for segment, _ in layout]     # of all ranks
        self.counts = [sum(s.stop - s.start for s, _ in layout) for layout in layouts]

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """The values of all ranks by parameter; `values`, as `data`, has this rank's.  Collective.
        """
        with self.pp.labelled("state"):
            flat = to_host(all_gather(self.pp, values, counts=self.counts))
        return {s.name: gather_parameter(self.tp, s, flat[s.start:s.stop], self.ep)
                for s in end_to_end(self.layout)}


def layout_by_holders(slab: Slab, ranks_of: dict[Parameter, set[int]]
                      ) -> Mapping[tuple[int, ...], SlabLayout]:
    """The slab's parameters by the ranks that share them; under () those that one rank holds."""
    groups: dict[tuple[int, ...], list] = {(): []}
    for segment, parameter in zip(slab.segments, slab.parameters):
        holders = tuple(sorted(ranks_of[parameter]))
        groups.setdefault(holders if len(holders) > 1 else (), []).append((segment, parameter))
    return groups


def parts_of(model: Module) -> list[ChainPart]:
    """The model's chain, or, if it has none, the members of its lists: for a model in one stage."""
    try:
        return chain(model)
    except TypeError:
        members = [member for _, module in model.named_modules() if isinstance(module, ModuleList)
                   for member in module if member.parameters()]
        return [ChainPart(f"block {i}", member, [member]) for i, member in enumerate(members)]


class OneStage:
    """The whole model on this rank, in one stage: without a pipeline.

    `parts` are the parts of each stage, `here` this rank's stages.  `whole_slabs` hold this rank's
    parameters.  `used_in` has the uses of each parameter, as (stage, number of a part in the
    stage).  The number is -1 if none of the model's parts has the parameter.
    """

    whole_slabs: list[Slab]
    shared: list[tuple[Communicator, Slab]] = []    # slabs that other ranks of pp have, too
    shares = False              # True if any ranks of pp share a slab
    placement: Placement = [0]
    here: Sequence[int] = [0]
    has_last = True             # this rank computes the loss

    def __init__(self, model: Module):
        self.model, self.parts, self.whole_slabs = model, [parts_of(model)], [*model.slabs]
        self.used_in = self.uses()

    def __len__(self) -> int:
        return len(self.placement)

    def uses(self) -> dict[Parameter, list[tuple[int, int]]]:
        """The stages and parts in which this rank uses each of its parameters."""
        uses: dict[Parameter, list[tuple[int, int]]] = {}
        for stage in self.here:
            for i, part in enumerate(self.parts[stage]):
                for parameter in part.parameters():
                    uses.setdefault(parameter, []).append((stage, i))
        for slab in self.whole_slabs:
            for parameter in slab.parameters:
                uses.setdefault(parameter, [(0, -1)])
        return uses

    def bucket_keys(self, slab: Slab) -> list[Any]:
        """A key for each parameter of a slab; no flat mixes parameters with different keys."""
        return [0] * len(slab.parameters)

    def completion_orders(self, flats: Sequence[Flat], each_backward: bool
                          ) -> dict[int, list[Flat]]:
        """For each stage of this rank the flats that its backward completes, in that order."""
        return {0: self.order_in(0, [flat for flat in flats if flat.parameters])}

    def order_in(self, stage: int, flats: Sequence[Flat]) -> list[Flat]:
        """`flats` as backward completes them: each at the first part of the stage that uses it."""
        first = {flat: min(part for p in flat.parameters for where, part in self.used_in[p]
                           if where == stage) for flat in flats[::-1]}
        return sorted(first, key=first.__getitem__, reverse=True)

    def run(self, stage: int, x: Tensor | Array) -> Tensor:
        """The output of one of this rank's stages for its input."""
        return self.model.run_parts(self.parts[stage], x)


class Stages(OneStage):
    """`model` cut into stages, stage s on rank placement[s] of `pp`.

    `cuts` are the parts at which stages 1, 2, … begin; without them the stages have as equal
    numbers of parameters as the parts allow.  `shared` are the slabs that other ranks also have,
    each with the communicator of the ranks that have it.
    """

    def __init__(self, model: Module, pp: Communicator, placement: Placement,
                 cuts: Sequence[int] | None = None):
        parts = chain(model)
        if cuts is None:
            cuts = cut_evenly([part.num_parameters() for part in parts], len(placement))
        bounds = [0, *cuts, len(parts)]
        if len(cuts) + 1 != len(placement) or any(a >= b for a, b in pairwise(bounds) if cuts):
            raise cuts_error(cuts, len(parts), len(placement))
        self.model, self.pp, self.placement, self.cuts = model, pp, placement, list(cuts)
        self.parts = [parts[start:stop] for start, stop in pairwise(bounds)]
        self.here = stages_on(placement, pp.rank)
        self.has_last = placement[-1] == pp.rank
        ranks_of = self._ranks_of_parameters()
        self._make_slabs(ranks_of)
        self._drop_weights_of_others(ranks_of)
        self.used_in = self.uses()

    def _ranks_of_parameters(self) -> dict[Parameter, set[int]]:
        """The ranks that hold each parameter; raises ValueError if a parameter is in no stage."""
        ranks_of: dict[Parameter, set[int]] = {}
        for rank in range(self.pp.size):
            for stage in stages_on(self.placement, rank):
                for parameter in (p for part in self.parts[stage] for p in part.parameters()):
                    ranks_of.setdefault(parameter, set()).add(rank)
        lost = [name for name, p in self.model.named_parameters() if p not in ranks_of]
        if lost:
            raise in_no_part_error(lost)
        return ranks_of

    def _make_slabs(self, ranks_of: dict[Parameter, set[int]]) -> None:
        """Put this rank's parameters into slabs: its own, and those it shares.  Collective."""
        self.whole_slabs, self.shared = [], []
        self.shares = any(len(ranks) > 1 for ranks in ranks_of.values())
        if self.pp.size == 1:
            self.whole_slabs += self.model.slabs
            return
        for slab in self.model.slabs:
            for holders, held in layout_by_holders(slab, ranks_of).items():
                layouts = [[(segment, parameter) for segment, parameter in held
                            if rank in ranks_of[parameter]] for rank in range(self.pp.size)]
                is_copy = bool(holders) and self.pp.rank != holders[0]
                self.whole_slabs.append(StageSlab(slab, layouts, self.pp, is_copy))
                if holders:
                    among = self.pp.split(0 if self.pp.rank in holders else None)
                    if among is not None:
                        among.axes = self.pp.axes
                        self.shared.append((among, self.whole_slabs[-1]))
        self.model.slabs = Buffers()

    def _drop_weights_of_others(self, ranks_of: dict[Parameter, set[int]]) -> None:
        """Make the parameters of other ranks shapes without values."""
        for parameter, ranks in ranks_of.items():
            if self.pp.rank not in ranks:
                parameter.data = Unmaterialized(parameter.shape, parameter.dtype,
                                                NEEDS_ALL_STAGES_MESSAGE)
                parameter.slot.get_grad_buffer = parameter.slot.grad = None

    def bucket_keys(self, slab: Slab) -> list[Any]:
        """The stages of each parameter, or a key of its own if other ranks of pp have the slab too.

        All these ranks must cut the slab alike.
        """
        if any(slab is shared for _, shared in self.shared):
            return [*range(len(slab.parameters))]
        return [{stage for stage, _ in self.used_in[parameter]} for parameter in slab.parameters]

    def completion_orders(self, flats: Sequence[Flat], each_backward: bool
                          ) -> dict[int, list[Flat]]:
        """For each stage of this rank the flats that its backward completes, in that order.

        If several stages of this rank add to one gradient, none of them completes it, unless
        gradients are reduced in `each_backward`.
        """
        stages_of = {flat: {stage for p in flat.parameters for stage, _ in self.used_in[p]}
                     for flat in flats}
        return {here: self.order_in(here, [flat for flat, stages in stages_of.items() if here in
                                           stages and (each_backward or len(stages) == 1)])
                for here in self.here[::-1]}
