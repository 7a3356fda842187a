"""The norm of all gradients, wherever they are: one value on every rank.

    √( Σ over replicated slabs of g²  +  Σ over ranks of Σ over their shards of g² )
"""

from collections.abc import Sequence

from ..comm.collectives import agree_on_sum
from ..nn.slab import Slab
from ..optim import clip_grad_norm as clip_by
from ..optim.clip import squared_norm
from .shards import Shard


def grad_norm(slabs: Sequence[Slab | Shard]) -> float:
    """The global norm; all ranks that share a shard must call it.

    A replicated slab is counted once, by each rank for itself; the squares of shards are summed
    over the ranks that share them, by one 8-byte control all-reduce for each such group.
    """
    replicated = [slab for slab in slabs if not isinstance(slab, Shard)]
    total = float(squared_norm(replicated))
    shards = [slab for slab in slabs if isinstance(slab, Shard)]
    for comm in {id(shard.comm): shard.comm for shard in shards}.values():
        own = [shard for shard in shards if shard.comm is comm]
        total += agree_on_sum(comm, float(squared_norm(own)))
    return total**0.5


def clip_grad_norm(slabs: Sequence[Slab | Shard], max_norm: float) -> float:
    """Scale all gradients down to a global norm of `max_norm`; return the norm before."""
    return clip_by(slabs, max_norm, grad_norm)
