"""FSDP beside pp and tp: the parameters of each stage live in shards over dp.

    row of a stage    F0      F1      B0      F2      B1          on each of its dp ranks
    gathered          a b c   a b c   c b a   a b c   c b a       units: the parts of the stage
    reduced                           c b a           c b a       their gradients, when whole

A unit has the parameters of one part of the chain; a weight that several parts of a rank use is a
unit of its own.  Under tp a unit has two flat parameters: one of the parameters that are split over
tp, and one of the others.  A module gathers its unit before it runs, and two units are gathered at
a time.  From the second batch on the next unit is prefetched, also across the boundary between two
actions.

A gradient is reduced as soon as a microbatch's B, or W, has completed it.  So gradients take Ψ/dp,
as parameters and states do, and no stage ever holds all of its own gradients whole.  The price is
that messages grow with m: a rank of a stage of Ψ parameters sends at most

    3 m Ψ (dp-1)/dp        instead of    (2 m + 1) Ψ (dp-1)/dp

elements over dp: gathers for F, gathers for B or I, and reductions.  The second count is that of
pipelines which add up whole gradients, Ψ of them, until the last microbatch, as PyTorch's do.
(They also keep weights gathered after a backward, and send even less.)  With memory for whole
weights and gradients, ZeRO-1 sends only 2Ψ(dp-1)/dp.

All dp ranks of a stage do the same actions in the same order.  So they gather and reduce in the
same order, and no two ranks can wait for each other.  Zhao et al., arXiv 2304.11277, section 7.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise

from ...autograd import Tensor
from ...comm import Communicator
from ...nn import Parameter
from ..data.reduction_queue import ReductionQueue
from ..strategy import Microbatch
from ..wire import UNCOMPRESSED, Wire
from ..zero.fsdp_unit import FlatParameter, FSDPUnit, mark_calls, unshard_before_use
from ..zero.prefetch import Prefetcher, duplicate
from ..zero.reducer import GradientReducer
from .executor import Pipeline
from .stage_shards import StageFlats
from .stage_slab import StageBuffer, StageSlab

NEEDS_WHOLE_BATCH_MESSAGE = (
    "beside pp and tp, fsdp gathers and reduces while a whole batch is computed: give its "
    "microbatches to strategy.forward_backward(microbatches), instead of calling "
    "model.loss and strategy.backward")
Users = tuple[tuple[int, int], ...]     # the (stage, part) of this rank that use a parameter
UnitKey = tuple[Users, bool]            # … and whether the unit has experts, cut over ep


class FullyShardedPipeline(Pipeline):
    """A Pipeline whose parameters are sharded over dp, once `shard` was called."""

    can_accumulate = False

    def shard(self, replicas_of: Callable[[StageSlab], Communicator],
              all_parts_of: Callable[[StageSlab], Communicator], wire: Wire = UNCOMPRESSED,
              gather_wire: Wire = UNCOMPRESSED) -> None:
        """Keep only this rank's shards over replicas_of(slab); sum norms over all_parts_of(slab).

        `replicas` is set: all ranks that gather and reduce together, except experts.
        """
        users = self._users()
        units: dict[UnitKey, list[FlatParameter]] = {}
        shared = [slab for _, slab in self.shared]      # cut alike on all their ranks
        cut: dict[StageBuffer, StageFlats] = {}
        for slab in self.stage_slabs:
            # neighbours with equal keys make one flat parameter; in a shared slab each is alone
            keys = [(users[p], i if slab in shared else 0) for i, p in enumerate(slab.parameters)]
            cuts = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
            cut[slab] = StageFlats(slab, replicas_of(slab), all_parts_of(slab),
                                   list(pairwise(cuts)) if keys else [])
            for first, flat in zip(cuts, cut[slab].flats):
                units.setdefault((keys[first][0], slab.ep is not None), []).append(flat)
        self.slabs = [cut[slab] for slab in self.slabs]
        self.shared = [(comm, cut[slab]) for comm, slab in self.shared]
        self._watch({key: units[key] for key in sorted(units)}, wire, gather_wire)

    def _users(self) -> dict[Parameter, Users]:
        users: dict[Parameter, Users] = {}
        for stage, parts in enumerate(self.stages):
            if self.placement[stage] == self.comm.rank:
                for i, part in enumerate(parts):
                    for parameter in part.parameters():
                        users[parameter] = (*users.get(parameter, ()), (stage, i))
        return users

    def _watch(self, flats_of: dict[UnitKey, list[FlatParameter]], wire: Wire,
               gather_wire: Wire) -> None:
        """Gather these units before their use, and reduce each stage's gradients."""
        dp = self.replicas
        assert dp is not None       # Hybrid sets it first
        of_experts = {flats[0].shard.comm for flats in flats_of.values()} - {dp}
        gathers, reductions = ({comm: duplicate(comm) for comm in of_experts} for _ in range(2))
        units = [FSDPUnit(flats, wire=gather_wire, own_comm=gathers.get(flats[0].shard.comm))
                 for flats in flats_of.values()]
        for unit in units:
            unshard_before_use([module for _, module in self.model.named_modules()], unit)
        for unit in units[:1]:
            mark_calls(self.model, unit)
        self.prefetcher = Prefetcher(units, dp, self._poll, remedy=NEEDS_WHOLE_BATCH_MESSAGE)
        flats = [(users, flat) for (users, _), of_unit in flats_of.items() for flat in of_unit]
        comm = duplicate(dp)            # so that reductions meet no gathers
        self.reducer = GradientReducer([flat.shard for _, flat in flats],
                                       [flat.gradient for _, flat in flats], comm, wire=wire,
                                       own_comms=reductions)
        self.orders: dict[int, ReductionQueue] = {}
        for stage in {stage for users, _ in flats_of for stage, _ in users}:
            # a gradient is complete after the backward of the first part that uses the weight
            first_part = {i: min(part for s, part in users if s == stage)
                          for i, (users, _) in enumerate(flats) if stage in {s for s, _ in users}}
            order = sorted(first_part, key=lambda i: first_part[i], reverse=True)
            self.orders[stage] = ReductionQueue([flats[i][1].shard.parameters for i in order],
                                                partial(self._start, order))

    def _start(self, order: Sequence[int], i: int) -> None:
        self.reducer.start(order[i])

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Run the schedule; raises RuntimeError unless all ranks of dp used the same units."""
        self.prefetcher.start_microbatch()
        with self.prefetcher.during("whole batch"):
            return super().run_batch(microbatches, loss_divisor, seed, step)

    def reducing(self, stage: int, y: Tensor) -> AbstractContextManager:
        """Context in which each gradient of a stage is reduced as soon as it is complete."""
        order = self.orders[stage]
        order.before_backward(y)
        return self._in_order(order, order.postpone())

    @contextmanager
    def _in_order(self, order: ReductionQueue, begin: Callable[[], None]) -> Iterator[None]:
        begin()
        yield
        order.after_backward()

    def after_backward(self) -> None:
        """Wait for the last reduction, then sum the shards of tied weights over their stages."""
        self.reducer.wait()
        self.prefetcher.check_same_units()
        self.prefetcher.finish_microbatch()
        super().after_backward()
