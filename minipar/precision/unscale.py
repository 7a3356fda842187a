"""Loss scaling on many ranks: all take a step, or none does.

    rank 0   its shards: finite    ─┐            An overflow may show on one rank alone,
    rank 1   its shards: infinite  ─┼─▶ Σ = 1    and the others would step: with other parameters,
    rank 2   its shards: finite    ─┘   skip     and other scales, from then on.

Each rank looks at the gradients it has, after they were summed, and one 8-byte control all-reduce
over all ranks, along whatever axes, says whether anyone found something.
"""

import numpy as np

from ..backend import cache_blocks
from ..comm.collectives import agree_on_sum
from ..parallel.strategy import Strategy


def unscale(strategy: Strategy, scale: float) -> bool:
    """Divide all gradients by `scale`; False, on every rank, if one anywhere is not finite.

    Then they are left as they are, and the step must not be taken.  Before clipping: that needs
    the norm of the gradients themselves.
    """
    grads = [slab.complete_grad() for slab in strategy.slabs]
    num_bad = sum(not np.isfinite(g).all() for grad in grads for (g,) in cache_blocks(grad))
    if agree_on_sum(strategy.comm, float(num_bad)):
        return False
    for grad in grads:
        grad *= 1 / scale
    return True
