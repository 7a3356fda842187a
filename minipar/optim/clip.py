"""Clipping by the global norm of all gradients (Pascanu, Mikolov & Bengio 2013)."""

from collections.abc import Callable, Sequence

import numpy as np

from ..backend import Array, blocks, is_host
from ..host_memory import page_out
from ..nn.slab import Slab


def squared_norm(slabs: Sequence[Slab]) -> Array:
    """Σ g² over all gradients, one float64; squares are summed in float64 whatever the dtype."""
    return sum((sum_of_squares(slab.complete_grad()) for slab in slabs), 0.0)


def sum_of_squares(flat: Array) -> Array:
    """Σ g² over an array (n,), one float64."""
    total = 0.0
    for (g,) in blocks(flat):
        total = total + np.einsum("i,i->", g, g, dtype=np.float64)
    page_out(flat)
    return total


def grad_norm(slabs: Sequence[Slab]) -> Array:
    """√(Σ g²) over all gradients."""
    return np.sqrt(squared_norm(slabs))


def clip_grad_norm(slabs: Sequence[Slab], max_norm: float,
                   norm_of: Callable[[Sequence[Slab]], Array] = grad_norm) -> Array:
    """Scale all gradients down to a global norm of `max_norm`; return the norm before.

    `norm_of(slabs)` is the norm, where they are not all here.  PyTorch's equation: the factor is
    min(1, max_norm / (norm + 1e-6)).  Gradients with an infinity or a NaN are left as they are: the
    norm says so, and no factor could mend them.
    """
    if max_norm <= 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}")
    norm = norm_of(slabs)
    factor = max_norm / (norm + 1e-6)
    if not is_host(factor) or 0 < factor < 1:
        for slab in slabs:
            slab.grad *= np.minimum(factor, 1).astype(slab.grad.dtype)
            page_out(slab.grad)
    return norm
