"""Naive model parallelism: layers on different ranks, and one of them works while p - 1 wait.

    rank 0  ▐ F ▌                            ▐  B  ▌      A rank begins when it has the activations
    rank 1       ▐ F ▌                ▐  B  ▌             of the rank before; backward, when it has
    rank 2            ▐ F ▌    ▐  B  ▌                    the gradients of the rank after.
    rank 3                 ▐ F ▌▐ B ▌
                                                          utilization 1/p, whatever the batch

It lets a model be larger than one device, and makes nothing faster.  A pipeline (pipeline/) cuts
the batch into microbatches, so that the ranks work at the same time.
"""

from collections.abc import Sequence

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator
from ...nn import Module
from ...random import training_step
from ..strategy import Microbatch
from .headers import recv_header, send_header
from .stages import Staged


class NaiveModelParallel(Staged):
    """Rank r has stage r of as many as there are ranks; see Staged for `cuts`."""

    def __init__(self, model: Module, comm: Communicator, cuts: Sequence[int] | None = None):
        super().__init__(model, comm, list(range(comm.size)), cuts)

    def run_microbatch(self, batch: Microbatch, num_targets: float, seed: int = 0,
                       step: int = 0) -> float:
        """See Strategy."""
        rank = self.comm.rank
        self.check_fresh()
        x = batch.inputs
        if rank:
            x = Tensor(self._receive(rank - 1), requires_grad=True)
        with training_step(seed, step, batch.samples):
            y = self.run_stage(rank, x)
            if self.has_last:
                y = self.model.criterion(y, batch.targets, num_targets)
        grad = None
        if not self.has_last:
            self._send(y.data, rank + 1)
            grad = self._receive(rank + 1)
        backward(y, grad)
        if rank:
            self._send(x.grad, rank - 1)
        self._synchronize()
        return float(y.data) if self.has_last else 0.0

    def _send(self, array: Array, dest: int) -> None:
        send_header(self.comm, array, dest).wait()
        self.comm.send(array, dest)

    def _receive(self, source: int) -> Array:
        shape, dtype = recv_header(self.comm, source)
        array = np.empty_like(self.slabs[0].data, shape=shape, dtype=dtype)
        self.comm.recv(array, source)
        return array
