"""ZeRO-1: data parallelism whose optimizer states are sharded (Rajbhandari et al. 2020).

    per rank            parameters   gradients   optimizer states        sent, for m microbatches
    data parallelism        4Ψ          4Ψ            8Ψ                  2Ψ (p-1)/p
    ZeRO-1                  4Ψ          4Ψ            8Ψ/p                2Ψ (p-1)/p
    ZeRO-2                  4Ψ          4Ψ/p          8Ψ/p            (m + 1)Ψ (p-1)/p
    ZeRO-3                  4Ψ/p        4Ψ/p          8Ψ/p                3mΨ (p-1)/p

Memory is in bytes, in float32 with Adam's two moments; messages are in elements, on rings.

An all-reduce is a reduce-scatter and an all-gather.  ZeRO-1 puts the optimizer's step between the
two, on 1/p of everything, and sends not one byte more.

Every bucket is cut into p pieces, so that all ranks take an equal part in every reduction.
arXiv 1910.02054, section 5.1.
"""

from collections.abc import Sequence

from ...comm import Communicator
from ...comm.collectives import all_gather, chunk_bounds
from ...comm.work import Work, start_work
from ...nn import Module
from ...optim import Optimizer
from ..data.buckets import BUCKET_MB, Bucket
from ..data.ddp import Bucketed
from ..shards import Shard, check_not_sharded
from ..wire import UNCOMPRESSED, Wire


def gather_parameters(comm: Communicator, buckets: Sequence[Bucket],
                      shards: Sequence[Shard]) -> None:
    """Give every rank the updated pieces of all ranks, in place."""
    for bucket, shard in zip(buckets, shards):
        all_gather(comm, shard.data, counts=shard.counts, out=bucket.data)


class ZeRO1(Bucketed):
    """Optimizer states are sharded: each rank steps on its piece of every bucket."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = BUCKET_MB,
                 first_bucket_mb: float = 1.0, wire: Wire = UNCOMPRESSED):
        check_not_sharded(model.named_parameters())
        super().__init__(model, comm, bucket_mb, first_bucket_mb, wire)
        self.slabs: list[Shard] = []        # the optimizer steps on shards as on slabs
        model.slabs = []        # emptied: their gradients are complete only in this rank's pieces
        for bucket in self.buckets:
            bounds = chunk_bounds(bucket.stop - bucket.start, comm.size)
            mine = slice(*bounds[comm.rank])
            self.slabs.append(Shard(bucket.parameters, bucket.layout, comm, bounds,
                                    bucket.data[mine], bucket.grad[mine]))

    def reduce_bucket(self, i: int) -> Work:
        """Begin the reduce-scatter of bucket i: the sum arrives where the shard reads it."""
        bucket, shard = self.buckets[i], self.slabs[i]
        shard.has_grad = True
        return start_work(self.wire.reduce_scatter, self.comm, bucket.grad, shard.counts,
                          key=bucket)

    def update(self, optimizer: Optimizer) -> None:
        """Step on this rank's shards, then all-gather the parameters."""
        super().update(optimizer)
        self.gather()

    def gather(self) -> None:
        """Give every rank the pieces of all ranks."""
        gather_parameters(self.comm, self.buckets, self.slabs)
