"""The norm of all gradients, wherever they are: one value on every rank.

    √( Σ over replicated slabs of g²  +  Σ over ranks of Σ over their parts of g² )

A part knows the ranks that have the others, its `comm`: a shard of a flat run of parameters, a slab
of boxes (tensor parallelism), or the parameters of a pipeline's stages, which may have copies of
another rank's: those it does not count (`own_grad`).  On a mesh these are the ranks along all axes
that cut it: for a shard of a stage of boxes, pp, dp and tp.
"""

from collections.abc import Sequence

from ..comm.collectives import agree_on_sum
from ..nn.slab import Slab
from ..optim import clip_grad_norm as clip_by
from ..optim.clip import squared_norm, sum_of_squares
from .shards import Shard


def grad_norm(slabs: Sequence[Slab | Shard]) -> float:
    """The global norm; all ranks that have parts must call it.

    A replicated slab is counted once, by each rank for itself; the squares of parts are summed
    over the ranks that share them, by one 8-byte control all-reduce for each such group.
    """
    replicated = [slab for slab in slabs if not hasattr(slab, "comm")]
    total = float(squared_norm(replicated))
    parts = [slab for slab in slabs if hasattr(slab, "comm")]
    for comm in {id(part.comm): part.comm for part in parts}.values():
        own = [getattr(part, "own_grad", part.complete_grad)() for part in parts
               if part.comm is comm]
        total += agree_on_sum(comm, float(sum(map(sum_of_squares, own))))
    return total**0.5


def clip_grad_norm(slabs: Sequence[Slab | Shard], max_norm: float) -> float:
    """Scale all gradients down to a global norm of `max_norm`; return the norm before."""
    return clip_by(slabs, max_norm, grad_norm)
