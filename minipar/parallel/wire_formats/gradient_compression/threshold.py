"""Threshold: send ±τ where what has waited exceeds τ.

    c = g + e          send i, + where cᵢ > τ; i, - where cᵢ < -τ          e = c - what was sent

A message has one integer for each number sent: its index and a sign bit.  The length of a message
differs between ranks and steps, so lengths are gathered first.  A number c that stays within ± τ is
never sent; one that is much larger takes several steps.  τ has to fit the gradients, which shrink
during training: top-k needs no such number.  Strom 2015, Scalable distributed DNN training using
commodity GPU cloud computing.
"""

import numpy as np

from ....comm import Communicator
from ....comm.collectives import all_gather
from .tensor_wire import Tensors, TensorWire, joined, parted


class Threshold(TensorWire):
    """Sends ±`threshold` for each number whose absolute value exceeds it."""

    hides_nan = True

    def __init__(self, threshold: float = 0.01):
        if not threshold > 0:
            raise ValueError(f"threshold={threshold}: choose a number above 0")
        super().__init__()
        self.threshold = threshold

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        waiting = {name: g + self.remembered(f"{name}/error", g) for name, g in tensors.items()}
        numbers = joined(waiting)
        [indices] = np.nonzero(np.abs(numbers) > self.threshold)
        message = (2 * indices + (numbers[indices] < 0)).astype(np.int32)
        with comm.labelled("control"):
            counts = all_gather(comm, np.array([message.shape[0]], np.int64)).tolist()
        total, mine, start = np.zeros_like(numbers), np.zeros_like(numbers), 0
        everything = all_gather(comm, message, counts=counts)
        for rank, count in enumerate(counts):
            arrived = everything[start:start + count]
            start += count
            steps = self.threshold * (1 - 2 * (arrived % 2)).astype(numbers.dtype)
            total[arrived // 2] += steps
            if rank == comm.rank:
                mine[arrived // 2] = steps
        left = parted(numbers - mine, tensors)
        return parted(total, tensors), {f"{name}/error": array for name, array in left.items()}
