"""FSDP beside pp and tp: the parameters of each stage live in shards over dp.

    row of a stage    F0      F1      B0      F2      B1          on each of its dp ranks
    gathered          a b c   a b c   c b a   a b c   c b a       units: the parts of the stage
    reduced                           c b a           c b a       their gradients, when whole

A unit is what one part of the chain has; a weight that several parts of a rank use is one of its
own.  Under tp a unit has two runs, of the parameters that are cut and of those that are not.  Who
uses a unit calls for it, and two are there at a time, whatever action they are used by: from the
second batch on the next one is gathered ahead, also from one action to the next.

A gradient is reduced as soon as a microbatch's B, or W, has made it whole, so that gradients take
Ψ/dp as parameters and states do, and no stage ever has all of its own whole.  That is what FSDP
does with microbatches alone, too, and costs their number m times as much: a rank of a stage of Ψ
parameters sends at most

    3 m Ψ (dp-1)/dp        instead of    (2 m + 1) Ψ (dp-1)/dp

elements over dp: gathered for F, gathered for B or I, reduced.  The second is for who adds up whole
gradients, Ψ of them, until the last microbatch, as PyTorch's pipelines do (which then keep weights
gathered after a backward, too, and send even less).  Who has that memory may take ZeRO-1, which
gathers nothing again: 2Ψ(dp-1)/dp.

All dp ranks of a stage do the same actions in the same order, and so gather and reduce in the same
order: nobody can wait for somebody who waits for them.  Zhao et al., arXiv 2304.11277, section 7.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise

from ...autograd import Tensor
from ...comm import Communicator
from ...nn import Parameter
from ...optim import Optimizer
from ..data.order import OrderedLauncher
from ..strategy import Microbatch
from ..wire import UNCOMPRESSED, Wire
from ..zero.fsdp_unit import FSDPUnit, unshard_before_use
from ..zero.prefetch import Prefetcher
from ..zero.reducer import GradientReducer
from .executor import Pipeline
from .stage_shards import StageRuns
from .stage_slab import StageSlab

NEEDS_WHOLE_BATCH = ("beside pp and tp, fsdp gathers and reduces while a whole batch is computed: give its "
          "microbatches to strategy.forward_backward(microbatches), instead of calling "
          "model.loss and strategy.backward")
Users = tuple[tuple[int, int], ...]     # the (stage, part) of this rank that use a parameter


class FullyShardedPipeline(Pipeline):
    """A Pipeline whose slabs `shard` cuts over dp; before that it is one."""

    can_accumulate = False

    def shard(self, dp: Communicator, comm_of: Callable[[StageSlab], Communicator],
              wire: Wire = UNCOMPRESSED, gather_wire: Wire = UNCOMPRESSED) -> None:
        """Keep this rank's pieces, alone of `dp`; parts of a slab are summed over comm_of(slab)."""
        users, units = self._users(), {}
        shared = [slab for _, slab in self.shared]      # to be cut alike on all that have them
        cut: dict[StageSlab, StageRuns] = {}
        for slab in self.slabs:
            keys = [(users[p], i if slab in shared else 0) for i, p in enumerate(slab.parameters)]
            cuts = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
            cut[slab] = StageRuns(slab, dp, comm_of(slab), list(pairwise(cuts)) if keys else [])
            for first, run in zip(cuts, cut[slab].runs):
                units.setdefault(keys[first][0], []).append(run)
        self.slabs = [cut[slab] for slab in self.slabs]
        self.shared = [(comm, cut[slab]) for comm, slab in self.shared]
        self._watch({key: FSDPUnit(units[key], wire=gather_wire) for key in sorted(units)}, dp,
                    wire)

    def _users(self) -> dict[Parameter, Users]:
        users: dict[Parameter, Users] = {}
        for stage, parts in enumerate(self.stages):
            if self.placement[stage] == self.comm.rank:
                for i, part in enumerate(parts):
                    for parameter in part.parameters():
                        users[parameter] = (*users.get(parameter, ()), (stage, i))
        return users

    def _watch(self, units: dict[Users, FSDPUnit], dp: Communicator, wire: Wire) -> None:
        """Gather these units when they are used, and reduce the gradients of each stage's."""
        for unit in units.values():
            unshard_before_use([module for _, module in self.model.named_modules()], unit)
        self.prefetcher = Prefetcher(list(units.values()), dp, self._poll, remedy=NEEDS_WHOLE_BATCH)
        runs = [(key, run) for key, unit in units.items() for run in unit.runs]
        self.reducer = GradientReducer([run.shard for _, run in runs],
                                       [run.gradient for _, run in runs], dp.split(0), wire=wire)
        self.orders: dict[int, OrderedLauncher] = {}
        for stage in {stage for key in units for stage, _ in key}:
            first = {i: min(part for s, part in key if s == stage)      # whose backward is last
                     for i, (key, _) in enumerate(runs) if stage in {s for s, _ in key}}
            order = sorted(first, key=first.get, reverse=True)
            self.orders[stage] = OrderedLauncher([runs[i][1].shard.parameters for i in order],
                                         lambda n, order=order: self.reducer.launch(order[n]))

    def run_batch(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """See Strategy.  Raises RuntimeError unless all ranks of dp used the same units."""
        self.prefetcher.start_step()
        with self.prefetcher.during("both"):
            return super().run_batch(microbatches, num_targets, seed, step)

    def reducing(self, stage: int, y: Tensor) -> AbstractContextManager:
        """See Pipeline: a gradient that becomes whole in it is reduced."""
        order = self.orders[stage]
        order.before_backward(y)
        return self._in_order(order, order.postpone())

    @contextmanager
    def _in_order(self, order: OrderedLauncher, begin: Callable[[], None]) -> Iterator[None]:
        begin()
        yield
        order.after_backward()

    def after_backward(self) -> None:
        """See Strategy: wait for the last reduction; what several stages have is summed in pieces.
        """
        self.reducer.wait()
        self.prefetcher.check_uses()
        self.prefetcher.finish_step()
        super().after_backward()

    def update(self, optimizer: Optimizer) -> None:
        """See Strategy."""
        super().update(optimizer)
        self.prefetcher.reshard()           # weights that an evaluation gathered are outdated
