"""Naive model parallelism: layers on different ranks; one works while the other p - 1 wait.

    rank 0  ▐ F ▌                            ▐  B  ▌
    rank 1       ▐ F ▌                ▐  B  ▌
    rank 2            ▐ F ▌    ▐  B  ▌                    utilization 1/p, whatever the batch
    rank 3                 ▐ F ▌▐ B ▌

A rank starts its forward with the activation from the rank before, and its backward with the
gradient from the rank after.

In this way a model can be larger than one device, but nothing gets faster.  A pipeline
(one_f_one_b.py) cuts the batch into microbatches, so that the ranks work at the same time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import Module
from ..strategy import Microbatch, Strategy
from .p2p import recv_header, send_header
from .schedule.actions import Placement


class NaiveModelParallel(Strategy):
    """A strategy: stage r on rank r, one microbatch at a time; see Stages for `cuts`."""

    def __init__(self, model: Module, comm: Communicator, cuts: Sequence[int] | None = None):
        super().__init__(model, DeviceMesh(comm, pp=comm.size), cuts=cuts)

    def plan_stages(self, *options: Any) -> Placement:
        """A stage for each rank."""
        return [*range(self.pp.size)]

    def run_microbatch(self, batch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of one microbatch; return this rank's share of the loss."""
        rank = self.comm.rank
        self.check_fresh()
        x = batch.inputs
        if rank:
            x = Tensor(self._receive(rank - 1), requires_grad=True)
        with self.context_of(batch, loss_divisor, seed, step):
            y = self.stages.run(rank, x)
            if self.stages.has_last:
                y = self.model.criterion(y, batch.targets, loss_divisor)
        grad = None
        if not self.stages.has_last:
            self._send(y.data, rank + 1)
            grad = self._receive(rank + 1)
        backward(y, grad)
        if rank:
            self._send(x.grad, rank - 1)
        self.sync_gradients()
        return float(y.data) if self.stages.has_last else 0.0

    def _send(self, array: Array, dest: int) -> None:
        send_header(self.comm, array, dest).wait()
        self.comm.send(array, dest)

    def _receive(self, source: int) -> Array:
        shape, dtype = recv_header(self.comm, source)
        array = np.empty(shape, dtype, like=self.like)
        self.comm.recv(array, source)
        return array
