"""DataParallel, the classic form: rank 0 drives, and the other ranks compute for it.

              inputs      parameters   outputs      d outputs    d parameters
    rank 0    ─┬─────▶    ─┬─────▶     ◀─┬─────     ─┬─────▶     ◀─┬─────        loss and optimizer
    rank 1     ├─────▶     ├─────▶     ◀─┤           ├─────▶     ◀─┤             on rank 0 alone
    rank 2     └─────▶     └─────▶     ◀─┘           └─────▶     ◀─┘

Five exchanges go through rank 0, the first four for each microbatch.  Their traffic grows with the
number of ranks: with m microbatches (m+1)Ψ(p-1) elements of parameters and gradients, and all
inputs and outputs.  `DistributedDataParallel` has one exchange of 2Ψ(p-1)/p.
(torch.nn.DataParallel drives the devices of one process in this way.)
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ...autograd import Tensor, cross_entropy
from ...autograd import backward as backward_from
from ...backend import Array, to_float
from ...comm import Communicator
from ...comm.collectives import broadcast, chunk_bounds, gather, scatter
from ...comm.mesh import DeviceMesh, subset
from ...nn import Module
from ...nn.step_context import row_shares, training_step
from ...optim import Optimizer
from ..strategy import Microbatch, Strategy, sum_over_samples


class DataParallel(Strategy):
    """Rank 0 gets whole batches, and deals their rows to all ranks; the other ranks get no rows."""

    def __init__(self, model: Module, comm: Communicator | DeviceMesh, **options: Any):
        if isinstance(comm, DeviceMesh):
            if {*comm.axes} != {"dp"} or "ep" in comm:
                raise ValueError("dp is over all ranks, with no other axis: choose ddp beside "
                                 "pp, cp, tp and ep")
            comm = comm.comm
        super().__init__(model, subset(comm, comm.rank), **options)     # refuses what needs a mesh
        self.comm = self.dp = self.replicas = comm
        for slab in self.slabs:             # rank 0 alone has gradients
            slab.norm_comm, slab.is_copy = comm, comm.rank > 0

    def rows(self, num_rows: int) -> range:
        """All rows for rank 0, none for the others."""
        return range(num_rows if self.comm.rank == 0 else 0)

    def forward_context(self) -> AbstractContextManager:
        """Send rank 0's parameters to all ranks, which may compute losses of their own rows."""
        self.parameters_changed()
        return nullcontext()

    def run_microbatch(self, batch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Make the five exchanges; return the loss on rank 0, which has the gradients, else 0."""
        comm, is_root = self.comm, self.comm.rank == 0
        with comm.labelled("control"):
            num_rows = int(broadcast(comm, np.array([len(batch.inputs)], np.int64))[0])
        counts = [stop - start for start, stop in chunk_bounds(num_rows, comm.size)]
        inputs = self._scatter_rows("scatter inputs", batch.inputs, counts)
        samples = self._scatter_rows("control", np.asarray(batch.samples, np.int64), counts)
        shares = row_shares(batch.targets, self.model.ignore_index, loss_divisor)
        with training_step(seed, step, samples,
                           shares=self._scatter_rows("control", shares, counts),
                           sum_over_samples=partial(sum_over_samples, comm)), \
                self.forward_context():
            outputs = self.model.logits(inputs)
        with comm.labelled("gather outputs"):
            together = gather(comm, outputs.data, counts=counts, algorithm="linear")
        loss, d_outputs = 0.0, outputs.data
        if is_root:
            leaf = Tensor(together, requires_grad=True)
            total = cross_entropy(leaf, batch.targets, loss_divisor, self.model.ignore_index)
            total.backward()
            loss, d_outputs = to_float(total.data), leaf.grad
        backward_from(outputs, self._scatter_rows("scatter output gradients", d_outputs, counts))
        self.sync_gradients()
        return loss

    def finish(self) -> None:
        """Sum the gradients of all ranks on rank 0, the fifth exchange; the others keep none."""
        with self.comm.labelled("reduce gradients"):
            for slab in self.model.slabs:
                if self.comm.rank:
                    self.comm.send(slab.complete_grad(), 0)
                    slab.zero_grad()
                    continue
                total, arrived = slab.complete_grad(), np.empty_like(slab.grad)
                for other in range(1, self.comm.size):
                    self.comm.recv(arrived, other)
                    total += arrived

    def update(self, optimizer: Optimizer) -> None:
        """Step on rank 0; the next forward sends its parameters to all ranks."""
        if self.comm.rank == 0:
            optimizer.step()

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of rank 0's parameters by name.  Collective."""
        self.parameters_changed()
        return super().state_dict()

    def _scatter_rows(self, label: str, array: Array, counts: list[int]) -> Array:
        """This rank's rows of rank 0's array; elsewhere `array` tells their shape and dtype."""
        if self.comm.rank:
            array = np.broadcast_to(np.zeros((), array.dtype, like=array),
                                    (sum(counts), *array.shape[1:]))
        with self.comm.labelled(label):
            return scatter(self.comm, array, counts=counts, algorithm="linear")

    def parameters_changed(self) -> None:
        """Send rank 0's parameters to all other ranks."""
        with self.comm.labelled("broadcast parameters"):
            for slab in self.model.slabs:
                for other in range(1, self.comm.size):
                    if self.comm.rank == 0:
                        self.comm.send(slab.data, other)
                    elif self.comm.rank == other:
                        self.comm.recv(slab.data, 0)
