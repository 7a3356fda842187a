"""Microbatches: a rank's rows in one forward, and the number of targets in all of them."""

from typing import NamedTuple

import numpy as np

from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_gather
from .errors import microbatches_error


class Microbatch(NamedTuple):
    """A rank's rows in one forward: the arguments of `model.loss`, and the samples' global numbers.

    Its arrays are on the rank's device.  A `data.Batch` has the same fields, on the host; its
    `split` cuts it into microbatches, for strategies that compute on the host.  The numbers of the
    samples determine the dropout masks.
    """

    inputs: Array
    targets: Array
    samples: Array


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
