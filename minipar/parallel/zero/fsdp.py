"""FSDP: parameters, gradients and optimizer states live in shards; weights are gathered for a use.

    memory     ┌──┐  ┌──┐  ┌──┐ │ ┌──┐  ┌──┐          each unit (a block, say) is gathered before it
               │h0│──│h1│──│h2│─│─│h2│──│h1│──        is used and released after: two at a time,
    shards   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁│▁▁▁▁▁▁▁▁▁▁▁▁▁▁       the one in use and the next, on its way
                  forward       │    backward

A unit is one flat run of parameters, padded to a multiple of p and cut into p equal shards.  Who
uses a weight calls for its unit, and again in backward: gathered weights do not stay alive.  The
order of uses is noted in the first step, and from then on the next unit is gathered while this one
computes (`gathering.py`).

A rank sends at most 3Ψ(p-1)/p elements: a unit is gathered for forward, and for backward unless it
is still there, and its gradient reduce-scattered.  PyTorch FSDP: Zhao et al., arXiv 2304.11277.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...autograd import Tensor
from ...backend import Array, record_allocation
from ...backend.mapped_file import page_out
from ...comm import Communicator
from ...comm.collectives import broadcast
from ...nn import Module
from ...optim import Optimizer
from ..shards import Shard
from .fsdp_unit import FSDPUnit, call_before_use, padded_run
from .prefetch import Prefetcher
from .zero2 import ShardedGradients, check_whole


class FullyShardedDataParallel(ShardedGradients):
    """Made by `fully_shard`; `slabs` are the shards, for the optimizer."""

    def __init__(self, model: Module, comm: Communicator, units: Sequence[FSDPUnit],
                 replicate: Communicator | None, prefetch: bool):
        self._take(model, comm)
        self.units = list(units)
        self.slabs = [run.shard for unit in units for run in unit.runs]
        self.shard_comm, self.replicate = self.slabs[0].comm, replicate
        self.prefetcher = Prefetcher(units, self.shard_comm, self._poll, prefetch)
        self.pieces: list[tuple[Shard, Array]] = []

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """See Strategy.  Raises RuntimeError at its end unless all ranks used the same units."""
        if self.reductions is None:
            self._watch_gradients()
            runs = [run for unit in self.units[::-1] for run in unit.runs]
            self.watch([run.shard for run in runs], [run.gradient for run in runs],
                       self.shard_comm.split(0))       # on which gathers do not meet reductions
        self.prefetcher.begin()
        with self.prefetcher.during("forward"):
            yield
        self.prefetcher.check_uses()

    def backward(self, loss: Tensor) -> None:
        """See Strategy."""
        with self.prefetcher.during("backward"):
            super().backward(loss)
        self.prefetcher.end()

    def update(self, optimizer: Optimizer) -> None:
        """See Strategy."""
        super().update(optimizer)
        self.prefetcher.release()            # what an evaluation gathered has old values now

    def keep(self, shard: Shard, piece: Array) -> None:
        """See ShardedGradients: with replicas, the sum over them is still to come."""
        if self.replicate is None or self.replicate.size == 1:
            super().keep(shard, piece)
        else:
            self.pieces.append((shard, record_allocation("communication", piece.copy())))

    def after_backward(self) -> None:
        """See Strategy."""
        super().after_backward()
        for shard, piece in self.pieces:
            whole = self.wire.all_reduce(self.replicate, piece, key=(shard, "replicas"))
            super().keep(shard, whole)
        self.pieces.clear()


def fully_shard(module: Module, comm: Communicator, *, shard: Communicator | None = None,
                replicate: Communicator | None = None, reshard_after_forward: bool = True,
                prefetch: bool = True) -> FullyShardedDataParallel:
    """Make the parameters of `module` a unit, sharded over `comm`; the strategy to train with.

    Call it for the parts first (each block) and for the whole model last: a unit is what no part
    has taken.  Hybrid sharding: a unit is sharded over the ranks `shard`, and `replicate` are those
    that hold the same shard, which they then all-reduce.  `reshard_after_forward=False` keeps this
    unit gathered until its backward: 2Ψ instead of 3Ψ are sent.  Rank 0's values are taken.  Raises
    ValueError if the module has no numbers or parameters, if the two axes are not all of `comm`, or
    if its parts were given others.
    """
    shard = shard or comm
    if shard.size * (replicate.size if replicate else 1) != comm.size:
        raise ValueError(f"shards over {shard.size} ranks and {replicate.size if replicate else 1} "
                         f"replicas do not make up {comm.size} ranks: give both axes of a mesh, "
                         'shard=mesh["shard"], replicate=mesh["replicate"]')
    parts = [part for _, part in module.named_modules()]
    inner = [unit for part in parts for unit in part.__dict__.pop("sharded_units", ())]
    for num_ranks in {unit.runs[0].shard.comm.size for unit in inner} - {shard.size}:
        raise ValueError(f"parts are sharded over {num_ranks} ranks, {type(module).__name__} over "
                         f"{shard.size}: give every call the same shard= and replicate=")
    taken = {id(p) for unit in inner for p in unit.parameters}
    prefix = f"{module.full_name}." if module.full_name else ""
    own = [(prefix + name, p) for name, p in module.named_parameters() if id(p) not in taken]
    units = list(inner)
    check_whole(own)
    if own:
        if not all(p.initialized for _, p in own):
            raise ValueError("the model has no numbers: call model.initialize(seed) first, and "
                             "give it to one strategy only")
        for _, p in own:
            broadcast(comm, p.data, out=p.data)
            page_out(p.data)
        unit = FSDPUnit([padded_run(own, shard)], not reshard_after_forward)
        units.insert(0, unit)
        call_before_use(parts, unit)
    if not units:
        raise ValueError(f"{type(module).__name__} has no parameters to shard")
    module.sharded_units, module.slabs = units, []
    return FullyShardedDataParallel(module, comm, units, replicate, prefetch)
