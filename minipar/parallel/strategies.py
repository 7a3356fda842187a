"""Every strategy by its name, as `minipar train --strategy` and the tests know it.

    dp      rank 0 drives (`classic.py`)        zero1, zero2    `zero.py`
    ddp     buckets (`ddp.py`)                  zero3           every weight by itself (`zero3.py`)
                                                fsdp            by block, ahead of use (`fsdp.py`)

All implement `strategy.Strategy`, so one training loop works with each of them.
"""

from collections.abc import Iterator

from ..comm import Communicator
from ..comm.mesh import DeviceMesh
from ..nn import Module
from ..nn.module import ModuleList
from .data.data_parallel import DataParallel
from .data.ddp import DistributedDataParallel
from .strategy import Strategy
from .zero.fsdp import FullyShardedDataParallel, fully_shard
from .zero.zero1 import ZeRO1, ZeRO2, ZeRO3

NAMES = ("dp", "ddp", "zero1", "zero2", "zero3", "fsdp")
PLAIN = {"dp": DataParallel, "zero3": ZeRO3}
BUCKETED = {"ddp": DistributedDataParallel, "zero1": ZeRO1, "zero2": ZeRO2}


def blocks(model: Module) -> Iterator[Module]:
    """The members of the model's lists that have parameters: a GPT's blocks, an MLP's layers."""
    return (member for _, module in model.named_modules() if isinstance(module, ModuleList)
            for member in module if member.parameters())


def shard_by_block(model: Module, comm: Communicator, hybrid_shard: int | None = None,
              **options: bool) -> FullyShardedDataParallel:
    """`fully_shard` of every block, then of the model.

    With `hybrid_shard`, over so many neighbouring ranks, and replicated over the others.
    """
    if hybrid_shard is not None:
        if hybrid_shard < 1 or comm.size % hybrid_shard:
            raise ValueError(f"{comm.size} ranks cannot be cut into groups of {hybrid_shard}: "
                             f"choose a divisor of {comm.size}")
        mesh = DeviceMesh(comm, replicate=-1, shard=hybrid_shard, order=("replicate", "shard"))
        options |= {"shard": mesh["shard"], "replicate": mesh["replicate"]}
    for part in list(blocks(model)):
        fully_shard(part, comm, **options)
    return fully_shard(model, comm, **options)


def make_strategy(name: str, model: Module, comm: Communicator, bucket_mb: float = 25.0,
                  hybrid_shard: int | None = None) -> Strategy:
    """The strategy of that name.  Raises ValueError for what does not exist or fit."""
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}: choose from {', '.join(NAMES)}")
    if hybrid_shard is not None and name != "fsdp":
        raise ValueError(f"hybrid_shard goes with fsdp, not with {name}")
    if name in BUCKETED:
        return BUCKETED[name](model, comm, bucket_mb, min(1.0, bucket_mb))
    if name in PLAIN:
        return PLAIN[name](model, comm)
    return shard_by_block(model, comm, hybrid_shard)
