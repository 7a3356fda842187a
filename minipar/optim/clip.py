"""Clipping by the global norm of all gradients, wherever they are (Pascanu, Mikolov & Bengio 2013).

    √( Σ over replicated slabs of g²  +  Σ over ranks of Σ over their parts of g² )

A slab (a flat array of parameters and one of their gradients) may be one of several parts: a ZeRO
shard, a tensor-parallel slab, or a stage's parameters.  Its `norm_comm` has the ranks with the
other parts.  A stage does not count copies of another rank's parameters (`is_copy`).  On a mesh,
`norm_comm` spans all axes that cut the slab: pp, dp, cp and tp for a ZeRO shard of a stage's
tensor-parallel slab.
"""

from collections.abc import Sequence

import numpy as np

from ..backend import Array, is_host, l2_blocks, to_float
from ..backend.mapped_file import page_out
from ..comm.collectives import sum_over_ranks
from ..nn.slab import FlatBuffer


def squared_norm(slabs: Sequence[FlatBuffer]) -> Array:
    """Σ g² of the slabs that this rank counts, one float64; any dtype is summed in float64."""
    return sum((sum_of_squares(slab.complete_grad()) for slab in slabs if not slab.is_copy), 0.0)


def sum_of_squares(flat: Array) -> Array:
    """Σ g² over an array (n,), one float64."""
    total = 0.0
    for (g,) in l2_blocks(flat):
        total = total + np.einsum("i,i->", g, g, dtype=np.float64)
    page_out(flat)
    return total


def grad_norm(slabs: Sequence[FlatBuffer]) -> Array:
    """Collective.  √(Σ g²) over all gradients, the same on every rank.

    Each rank counts its replicated slabs itself, once.  The squares of parts are summed over the
    ranks that share them.  Each such group of ranks makes one all-gather of 8 bytes from each rank,
    labelled control.
    """
    if not slabs:
        raise ValueError("no gradients are here: give the slabs that this rank optimizes, "
                         "strategy.slabs")
    total = squared_norm([slab for slab in slabs if slab.norm_comm is None])
    cut = {id(slab.norm_comm): slab.norm_comm for slab in slabs if slab.norm_comm is not None}
    for comm in cut.values():
        parts = [slab for slab in slabs if slab.norm_comm is comm]
        total = total + sum_over_ranks(comm, to_float(squared_norm(parts)))
    return np.sqrt(total)


def clip_grad_norm(slabs: Sequence[FlatBuffer], max_norm: float) -> Array:
    """Collective.  Scale all gradients down to a global norm of `max_norm`; return the norm before.

    `slabs` are what this rank optimizes: `model.slabs`, or `strategy.slabs`.  As in PyTorch, the
    factor is min(1, max_norm / (norm + 1e-6)).  If a gradient has an infinity or a NaN, none is
    scaled: the returned norm shows it.
    """
    if max_norm <= 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}")
    norm = grad_norm(slabs)
    factor = max_norm / (norm + 1e-6)
    if not is_host(factor):
        # no `if` on a device value: it would make the host wait
        factor = np.where(factor > 0, np.minimum(factor, 1), 1)
    elif not 0 < factor < 1:
        return norm
    for slab in slabs:
        slab.grad *= factor.astype(slab.grad.dtype)
        page_out(slab.grad)
    return norm
