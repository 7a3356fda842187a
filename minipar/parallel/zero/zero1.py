"""ZeRO: data parallelism without redundancy (Rajbhandari et al. 2020, arXiv 1910.02054).

    per rank            parameters   gradients   optimizer states        sent, in elements
    data parallelism        4Ψ          4Ψ            8Ψ                  2Ψ (p-1)/p
    ZeRO-1                  4Ψ          4Ψ            8Ψ/p                2Ψ (p-1)/p
    ZeRO-2                  4Ψ          4Ψ/p          8Ψ/p                2Ψ (p-1)/p
    ZeRO-3                  4Ψ/p        4Ψ/p          8Ψ/p                3Ψ (p-1)/p

(bytes in float32 with Adam's two moments.)  An all-reduce is a reduce-scatter and an all-gather:
ZeRO puts the optimizer's step between the two, on 1/p of everything, and sends nothing more.  With
m microbatches ZeRO-2 has nowhere to add gradients up, and reduces each: (m + 1) Ψ; ZeRO-3
(`zero3.py`) gathers for each, too: 3m Ψ.

Every bucket is cut into p pieces, so that all ranks take part in all reductions alike.
"""


from ...backend import allocate_zeros
from ...comm import Communicator
from ...comm.collectives import all_gather, chunk_bounds
from ...comm.work import Work, start
from ...nn import Module
from ...optim import Optimizer
from ..data.buckets import Bucket, bucket_limits, make_buckets
from ..data.ddp import Bucketed
from ..data.graph import broadcast_parameters
from ..shards import Shard
from ..strategy import Strategy
from .graph import ShardedParameters
from .zero2 import ShardedGradients, TransientGradient, check_whole


def publish(comm: Communicator, runs: list[Bucket], shards: list[Shard]) -> None:
    """Everyone's piece of the parameters for everyone, in place."""
    for run, shard in zip(runs, shards):
        all_gather(comm, shard.data, counts=shard.counts, out=run.data)


class ZeRO1(Bucketed):
    """Optimizer states are sharded: each rank steps on its piece of every bucket."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = 25.0,
                 first_bucket_mb: float = 1.0):
        check_whole(model.named_parameters())
        super().__init__(model, comm, bucket_mb, first_bucket_mb)
        self.slabs, model.slabs = [], []        # whose gradients are sums in pieces only
        for run in self.buckets:
            bounds = chunk_bounds(run.stop - run.start, comm.size)
            mine = slice(*bounds[comm.rank])
            self.slabs.append(Shard(run.parameters, run.layout, comm, bounds, run.data[mine],
                                    run.grad[mine]))

    def start(self, run: Bucket) -> Work:
        """See Bucketed: the sum of this rank's piece ends where its shard looks for it."""
        shard = self.slabs[self.buckets.index(run)]
        shard.has_grad = True
        return start(self.wire.reduce_scatter, self.comm, run.grad, shard.counts, key=run)

    def update(self, optimizer: Optimizer) -> None:
        """See Strategy."""
        super().update(optimizer)
        publish(self.comm, self.buckets, self.slabs)


class ZeRO2(ShardedGradients):
    """Optimizer states and gradients are sharded: a bucket's gradient is freed once reduced."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = 25.0,
                 first_bucket_mb: float = 1.0):
        check_whole(model.named_parameters())
        super().__init__(model, comm)
        broadcast_parameters(model, comm)
        self.buckets = make_buckets(model.slabs, bucket_limits(first_bucket_mb, bucket_mb))
        self.slabs, gradients = [], []
        for run in self.buckets:
            bounds = chunk_bounds(run.stop - run.start, comm.size)
            data = run.data[slice(*bounds[comm.rank])]
            grad = allocate_zeros("gradients", data)
            self.slabs.append(Shard(run.parameters, run.layout, comm, bounds, data, grad))
            gradients.append(TransientGradient(run.parameters, run.layout, data))
        for slab in model.slabs:
            slab.drop_grad()
        self.watch(self.slabs, gradients, comm)

    def update(self, optimizer: Optimizer) -> None:
        """See Strategy."""
        super().update(optimizer)
        publish(self.comm, self.buckets, self.slabs)


class ZeRO3(Strategy):
    """Everything is sharded; every weight is gathered by itself."""

    can_accumulate = False

    def __init__(self, model: Module, comm: Communicator):
        check_whole(model.named_parameters())
        super().__init__(model, comm)
        self.sharded = ShardedParameters(model, comm)
        self.slabs = self.sharded.slabs
        self.forward_context = self.sharded.forward_context
