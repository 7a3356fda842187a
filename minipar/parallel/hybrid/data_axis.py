"""The dp axis of a hybrid: how the ranks of a stage with the same parameters share the work.

    ddp     every rank keeps all parameters, and gradients are summed after the schedule
    zero1   every rank optimizes a piece, and all ranks gather the parameters
    fsdp    every rank keeps shards, which are gathered and reduced while the schedule runs

These ranks are those of dp and of cp: cp ranks have different tokens of the same rows.
"""

from collections.abc import Callable, Sequence

from ...comm import Communicator
from ...comm.collectives import all_gather
from ..pipeline.executor import Pipeline
from ..pipeline.fsdp_pipeline import NEEDS_WHOLE_BATCH_MESSAGE, FullyShardedPipeline
from ..pipeline.stage_shards import StageShard
from ..pipeline.stage_slab import StageBuffer, StageSlab
from ..wire import Wire


class AllReduceOverDP:
    """ddp: the dp ranks of a stage sum its gradients, and each keeps all of them.

    Base of the other two.  `slabs` are the slabs that this rank optimizes.  replicas_of(slab) is
    the communicator of the ranks with the same parameters.  all_parts_of(slab) is the communicator
    of the ranks that together hold all parts of a slab which is sharded over dp.
    """

    pipeline_class: type[Pipeline] = Pipeline
    refusal: str | None = None          # why a rank must not call backward without its dp ranks

    def __init__(self, pipeline: Pipeline, replicas_of: Callable[[StageSlab], Communicator],
                 all_parts_of: Callable[[StageSlab], Communicator], wire: Wire, gather_wire: Wire):
        self.pipeline, self.wire = pipeline, wire
        self.replicas_of, self.all_parts_of = replicas_of, all_parts_of
        self.shard(gather_wire)

    def shard(self, gather_wire: Wire) -> None:
        """Set `slabs`, cutting the pipeline's if need be."""
        self.slabs: Sequence[StageBuffer] = self.pipeline.slabs

    def reduce(self) -> None:
        """Sum over dp the gradients of a batch, which the schedule has computed."""
        for slab in self.pipeline.stage_slabs:
            self.wire.all_reduce(self.replicas_of(slab), slab.grad, key=slab)

    def gather(self) -> None:
        """Give each dp rank the parameters that the optimizer has updated elsewhere."""


class ShardedStatesOverDP(AllReduceOverDP):
    """zero1: each dp rank optimizes one piece of a slab, and all gather the parameters."""

    slabs: list[StageShard]

    def shard(self, gather_wire: Wire) -> None:
        """Cut each slab into pieces."""
        self.slabs = [StageShard(slab, self.replicas_of(slab), self.all_parts_of(slab))
                      for slab in self.pipeline.stage_slabs]

    def reduce(self) -> None:
        """Sum this rank's piece of the gradients over dp."""
        for slab, shard in zip(self.pipeline.stage_slabs, self.slabs):
            self.wire.reduce_scatter(shard.dp, slab.grad, shard.counts, key=slab)
            shard.has_grad = True

    def gather(self) -> None:
        """Gather the pieces of the parameters."""
        for slab, shard in zip(self.pipeline.stage_slabs, self.slabs):
            all_gather(shard.dp, shard.data, counts=shard.counts, out=slab.data)


class FullyShardedOverDP(AllReduceOverDP):
    """fsdp: each dp rank keeps shards, which the pipeline gathers and reduces as it runs."""

    pipeline_class = FullyShardedPipeline
    pipeline: FullyShardedPipeline
    refusal = NEEDS_WHOLE_BATCH_MESSAGE

    def shard(self, gather_wire: Wire) -> None:
        """Cut the parameters of the pipeline into shards."""
        self.pipeline.shard(self.replicas_of, self.all_parts_of, self.wire, gather_wire)
        self.slabs = self.pipeline.slabs

    def reduce(self) -> None:
        """Do nothing: the gradients were reduced during the schedule."""
