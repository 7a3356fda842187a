"""ZeRO-2: optimizer states and gradients are sharded (Rajbhandari et al. 2020).

The gradient of a bucket exists from its first contribution until it is reduced; then each rank
keeps its piece, 1/p.  There is no room to add up whole gradients, so with m microbatches each is
reduced: a rank sends (m + 1) Ψ (p-1)/p elements.  arXiv 1910.02054, section 5.2.
"""

from ...backend import allocate_zeros
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Module
from ...optim import Optimizer
from ..data.buckets import BUCKET_MB, bucket_limits, make_buckets
from ..replicas import broadcast_parameters
from ..shards import Shard, check_not_sharded
from ..wire import UNCOMPRESSED, Wire
from .reducer import ShardedGradients, TransientGradient
from .zero1 import gather_parameters


class ZeRO2(ShardedGradients):
    """Optimizer states and gradients are sharded: a bucket's gradient is freed once reduced."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = BUCKET_MB,
                 first_bucket_mb: float = 1.0, wire: Wire = UNCOMPRESSED):
        check_not_sharded(model.named_parameters())
        super().__init__(model, comm, wire)
        broadcast_parameters(model, comm)
        self.buckets = make_buckets(model.slabs, bucket_limits(first_bucket_mb, bucket_mb))
        self.slabs: list[Shard] = []
        gradients = []
        for bucket in self.buckets:
            bounds = chunk_bounds(bucket.stop - bucket.start, comm.size)
            data = bucket.data[slice(*bounds[comm.rank])]
            grad = allocate_zeros("gradients", data)
            self.slabs.append(Shard(bucket.parameters, bucket.layout, comm, bounds, data, grad))
            gradients.append(TransientGradient(bucket.parameters, bucket.layout, data))
        for slab in model.slabs:
            slab.drop_grad()
        self.reduce_to(self.slabs, gradients, comm)

    def update(self, optimizer: Optimizer) -> None:
        """Step on this rank's shards, then all-gather the parameters."""
        super().update(optimizer)
        self.gather()

    def gather(self) -> None:
        """Give every rank the pieces of all ranks."""
        gather_parameters(self.comm, self.buckets, self.slabs)
