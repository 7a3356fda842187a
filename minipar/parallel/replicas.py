"""Replicas: ranks that hold the same parameters start alike, stay alike and count together.

    broadcast_parameters                    start alike: all ranks take rank 0's parameters
    check_replicas, ranks_that_differ       stay alike: name the ranks that do not
    check_uses                              use alike: sharded weights, in one order on all ranks
    sum_targets, global_count, global_loss  count together: sums over the parts of a batch

Only ranks that hold the same parameters and divide by the same count take the same step.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from ..backend import Array, to_host
from ..comm import Communicator
from ..comm.collectives import all_gather, broadcast, sum_over_ranks
from ..nn import Module


def broadcast_parameters(model: Module, comm: Communicator) -> None:
    """Broadcast rank 0's parameters to all ranks, one slab at a time."""
    for slab in model.slabs:
        broadcast(comm, slab.data, out=slab.data)


def ranks_that_differ(comm: Communicator, digest: bytes) -> str:
    """Collective.  The ranks whose digest differs from rank 0's, as "1, 3", or "" if none does."""
    with comm.labelled("control"):
        all_digests = all_gather(comm, np.frombuffer(digest, np.uint8)).reshape(comm.size, -1)
    return ", ".join(str(r) for r in range(comm.size) if (all_digests[r] != all_digests[0]).any())


def different_uses_error(ranks: str) -> RuntimeError:
    """The error where `ranks` used different weights than rank 0."""
    return RuntimeError(f"ranks {ranks} used different weights than rank 0 in this step. Sharded "
                        "weights are gathered by all ranks together, so every rank must use the "
                        "same ones in the same order. Multiply an unwanted branch by 0, put both "
                        "branches into one FSDP unit, or shard no parameters.")


def check_uses(names: Sequence[str], comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks used these weights in this order.

    Ranks that gather different weights would mix them up, silently where sizes are equal.
    """
    different = ranks_that_differ(comm, hashlib.sha256("\n".join(names).encode()).digest())
    if different:
        raise different_uses_error(different)


def check_replicas(model: Module, comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks hold the same bits of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(np.ascontiguousarray(to_host(parameter.data)).data)
    different = ranks_that_differ(comm, digest.digest())
    if different:
        raise RuntimeError(f"the parameters on ranks {different} are not those of rank 0: the "
                           "replicas have diverged (an update that only some ranks made, or "
                           "different gradients)")


def microbatches_error(numbers: Sequence[int]) -> ValueError:
    """The ranks have these numbers of microbatches, which differ or are 0."""
    other = next((rank for rank, number in enumerate(numbers) if number != numbers[0]), None)
    if other is None:
        return ValueError("no microbatches: give at least one (it may have no rows)")
    return ValueError(f"rank 0 has {numbers[0]} microbatches, but rank {other} has "
                      f"{numbers[other]}: all ranks take part in every one; give as many on each "
                      "(one may have no rows)")


def sum_targets(comm: Communicator, num_local: int, num_microbatches: int) -> float:
    """The number of targets over all ranks, at least 1.  Collective: one control message.

    Raises ValueError, on every rank, if ranks have different numbers of microbatches, or none.
    """
    with comm.labelled("control"):
        counts = all_gather(comm, np.array([[num_local, num_microbatches]], np.float64))    # (p, 2)
    numbers = counts[:, 1].astype(int).tolist()
    if not numbers[0] or any(number != numbers[0] for number in numbers):
        raise microbatches_error(numbers)
    return float(np.sum(counts[:, 0])) or 1.0


def global_count(comm: Communicator, num_local: int) -> float:
    """The number of targets over all ranks, at least 1: the divisor of every loss.  Collective."""
    return sum_over_ranks(comm, num_local) or 1.0


def global_loss(comm: Communicator, loss: Array) -> float:
    """The loss of the whole batch, the sum of all ranks' shares.  Collective."""
    return sum_over_ranks(comm, float(loss))
