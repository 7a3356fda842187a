"""Data parallelism: every rank has the whole model and a part of the batch.

    rank 0   w ─▶ loss of samples 0 … 3 ─▶ dw₀ ─┐
                                                  Σ ─▶ dw on both ─▶ the same step on both
    rank 1   w ─▶ loss of samples 4 … 7 ─▶ dw₁ ─┘

The loss is a sum over the local targets, divided by the *global* number of targets.  So gradients
simply add up to those of one process, also for uneven batches.

The graph form is the specification: `copy_to` on every use of a weight, whose backward sums the
gradients over the ranks.  The slab form sums the flat gradient once, so a weight that is used k
times costs one message instead of k.  `ddp.py` sums it in buckets, during backward.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather, all_reduce, broadcast, sum_over_ranks
from ...nn import Module
from ..conjugate import copy_to


def broadcast_parameters(model: Module, comm: Communicator) -> None:
    """Broadcast rank 0's parameters to all ranks, one slab at a time."""
    for slab in model.slabs:
        broadcast(comm, slab.data, out=slab.data)


def check_uses(names: Sequence[str], comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks used these weights in this order.

    Ranks that gather different weights would mix them up, silently where sizes are equal.
    """
    different = ranks_that_differ(comm, hashlib.sha256("\n".join(names).encode()).digest())
    if different:
        raise RuntimeError(f"ranks {different} used different weights than rank 0 in this step. "
                           "Sharded weights are gathered by all ranks together, so every rank must "
                           "use the same ones in the same order. Multiply an unwanted branch by 0, "
                           "put both branches into one FSDP unit, or use ddp, zero1 or zero2.")


def ranks_that_differ(comm: Communicator, digest: bytes) -> str:
    """Collective.  The ranks whose digest differs from rank 0's, as "1, 3", or "" if none does."""
    with comm.labelled("control"):
        all_digests = all_gather(comm, np.frombuffer(digest, np.uint8)).reshape(comm.size, -1)
    return ", ".join(str(r) for r in range(comm.size) if (all_digests[r] != all_digests[0]).any())


def data_parallel(model: Module, comm: Communicator) -> Module:
    """Make every use of a parameter `copy_to(parameter, comm)`, the graph form; return the model.

    After `loss.backward()` all ranks hold the gradients of the whole batch.
    """
    broadcast_parameters(model, comm)
    model.transform_parameters(lambda weight: copy_to(weight, comm))
    return model


def all_reduce_gradients(model: Module, comm: Communicator) -> None:
    """Sum all gradients, the slab form, after `loss.backward()`: 2n(p-1)/p bytes of a slab of n."""
    for slab in model.slabs:
        all_reduce(comm, slab.complete_grad(), algorithm="ring", out=slab.grad)


def global_count(comm: Communicator, num_local: int) -> float:
    """The number of targets over all ranks, at least 1: the divisor of every loss.  Collective."""
    return sum_over_ranks(comm, num_local) or 1.0


def global_loss(comm: Communicator, loss: Array) -> float:
    """The loss of the whole batch, the sum of all ranks' shares.  Collective."""
    return sum_over_ranks(comm, float(loss))
