"""Data parallelism: every rank has the whole model and a part of the batch.

    rank 0   w ─▶ loss of samples 0 … 3 ─▶ dw₀ ─┐
                                                Σ ─▶ dw on both ─▶ the same step on both
    rank 1   w ─▶ loss of samples 4 … 7 ─▶ dw₁ ─┘

The loss is a sum over the local targets, divided by the *global* number of targets.  So gradients
simply add up to the gradients of one process, also for uneven batches.

The graph form is the specification: every use of a weight goes through `copy_to`, whose backward
sums the gradients over the ranks.  The slab form sums a slab, the array of many gradients, once
after backward.  So the gradient of a weight that is used k times is sent once instead of k times.
`ddp.py` sums buckets, parts of the slab, during backward.
"""

from ...comm import Communicator
from ...comm.collectives import all_reduce, broadcast
from ...nn import Module
from ..conjugate import copy_to


def data_parallel(model: Module, comm: Communicator) -> Module:
    """Make every use of a parameter `copy_to(parameter, comm)`, the graph form; return the model.

    After `loss.backward()` all ranks hold the gradients of the whole batch.
    """
    for slab in model.slabs:
        broadcast(comm, slab.data, out=slab.data)       # rank 0's values for everyone
    for parameter in model.parameters():
        parameter.on_use(lambda weight: copy_to(weight, comm))
    return model


def all_reduce_gradients(model: Module, comm: Communicator) -> None:
    """Sum all gradients, the slab form, after `loss.backward()`: 2Ψ(p-1)/p elements a rank."""
    # no "auto": it may choose another algorithm, of a different cost than the docstring's
    for slab in model.slabs:
        all_reduce(comm, slab.complete_grad(), algorithm="ring", out=slab.grad)
