"""Data parallelism: every rank has the whole model and a part of the batch.

    rank 0   w ─▶ loss of samples 0 … 3 ─▶ dw₀ ─┐
                                                  Σ ─▶ dw on both ─▶ the same step on both
    rank 1   w ─▶ loss of samples 4 … 7 ─▶ dw₁ ─┘

No strategy divides: the loss is a sum over the local targets divided by the *global* number of
targets, so gradients simply add up to those of one process, also for uneven batches.

The graph form is the specification: `copy_to` on every use of a weight, whose backward sums the
gradients over the ranks.  The slab form is the product: it sums the flat gradient once, so a weight
that is used k times costs one message instead of k.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import agree_on_sum, all_gather, all_reduce, broadcast
from ...nn import Module
from ..conjugate import copy_to


def broadcast_parameters(model: Module, comm: Communicator) -> None:
    """Rank 0's parameters for everyone, slab by slab."""
    for slab in model.slabs:
        broadcast(comm, slab.data, out=slab.data)


def check_uses(names: Sequence[str], comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks used these weights in this order.

    Ranks that gather different weights would mix them up, without a word where sizes are equal.
    """
    different = ranks_that_differ(comm, hashlib.sha256("\n".join(names).encode()).digest())
    if different:
        raise RuntimeError(f"ranks {different} used other weights than rank 0, but sharded weights "
                           "are gathered by all ranks together: use the same on every rank (times "
                           "0, where not wanted), or put them into one unit of FSDP, or choose "
                           "ddp, zero1 or zero2")


def ranks_that_differ(comm: Communicator, digest: bytes) -> str:
    """The ranks whose digest is not that of rank 0, as "1, 3"; every rank gets the same answer."""
    with comm.labelled("control"):
        all_digests = all_gather(comm, np.frombuffer(digest, np.uint8)).reshape(comm.size, -1)
    return ", ".join(str(r) for r in range(comm.size) if (all_digests[r] != all_digests[0]).any())


def data_parallel(model: Module, comm: Communicator) -> Module:
    """The graph form: from now on every use of a parameter is `copy_to(parameter, comm)`.

    After `loss.backward()` all ranks hold the gradients of the whole batch.  Returns the model.
    """
    broadcast_parameters(model, comm)
    model.transform_parameters(lambda weight: copy_to(weight, comm))
    return model


def all_reduce_gradients(model: Module, comm: Communicator) -> None:
    """The slab form, once after `loss.backward()`: 2n(p-1)/p bytes for a slab of n bytes."""
    for slab in model.slabs:
        all_reduce(comm, slab.complete_grad(), algorithm="ring", out=slab.grad)


def global_count(comm: Communicator, num_local: int) -> float:
    """How many targets count over all ranks (at least 1): what every loss is divided by."""
    return agree_on_sum(comm, num_local) or 1.0


def global_loss(comm: Communicator, loss: Array) -> float:
    """The loss of the whole batch from each rank's share of it."""
    return agree_on_sum(comm, float(loss))
