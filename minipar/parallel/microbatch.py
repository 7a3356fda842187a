"""A rank's rows of a batch, and what all ranks have to know of a batch before they begin."""

from typing import NamedTuple

import numpy as np

from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_gather, all_reduce


class Microbatch(NamedTuple):
    """A rank's rows in one forward: the arguments of `model.loss`, and the samples' global numbers.

    The numbers of the samples determine the dropout masks.  The arrays are on the rank's device;
    `data.Batch(…).split` makes microbatches on the host.
    """

    inputs: Array
    targets: Array
    samples: Array


def sum_over_samples(replicas: Communicator, array: np.ndarray) -> np.ndarray:
    """The sum over the ranks that have different samples.  Collective."""
    with replicas.labelled("control"):
        return all_reduce(replicas, array)


def sum_targets(comm: Communicator, num_local: int, num_microbatches: int) -> float:
    """The number of targets over all ranks, at least 1.  Collective.

    It is an all-gather of 16 bytes from each rank, labelled control.  Raises ValueError, on every
    rank, if ranks have different numbers of microbatches, or none.
    """
    with comm.labelled("control"):
        counts = all_gather(comm, np.array([[num_local, num_microbatches]], np.float64))    # (p, 2)
    first, *others = counts[:, 1].astype(int).tolist()
    for rank, number in enumerate(others, 1):
        if number != first:
            raise ValueError(f"rank 0 has {first} microbatches, but rank {rank} has {number}: all "
                             "ranks take part in every one; give as many on each (one may have no "
                             "rows)")
    if not first:
        raise ValueError("no microbatches: give at least one (it may have no rows)")
    return float(np.sum(counts[:, 0])) or 1.0
