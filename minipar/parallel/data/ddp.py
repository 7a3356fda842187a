"""Distributed data parallelism: buckets of gradients are summed while backward goes on.

    backward     ▓▓ h.3 ▓▓▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    messages           ░░ 0 ░░░░ 1 ░░░░ 2 ░░░░ 3 ░░           time max(B, M), not B + M

One exchange a step: an all-reduce of all gradients, 2Ψ(p-1)/p elements per rank.  Li et al. 2020,
PyTorch Distributed: Experiences on Accelerating Data Parallel Training.
"""

import hashlib
from collections.abc import Callable

import numpy as np

from ...autograd import Tensor
from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.work import Work, start
from ...nn import Module
from ..strategy import Strategy
from .buckets import Bucket, bucket_limits, make_buckets
from .graph import broadcast_parameters, ranks_that_differ
from .order import OrderedLauncher

Reduction = Callable[[Communicator, Array], Array]


def check_replicas(model: Module, comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks hold the same bits of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(np.ascontiguousarray(to_host(parameter.data)))
    different = ranks_that_differ(comm, digest.digest())
    if different:
        raise RuntimeError(f"the parameters on ranks {different} are not those of rank 0: the "
                           "replicas have diverged (an update that only some ranks made, or other "
                           "gradients)")


class Bucketed(Strategy):
    """What all strategies share whose gradients stay in the slab until their bucket is reduced."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = 25.0,
                 first_bucket_mb: float = 1.0):
        super().__init__(model, comm)
        self.buckets = make_buckets(model.slabs, bucket_limits(first_bucket_mb, bucket_mb))
        broadcast_parameters(model, comm)
        self.order = OrderedLauncher([run.parameters for run in self.buckets], self._launch)
        self.works: list[tuple[Bucket, Work]] = []

    def start(self, run: Bucket) -> Work:
        """Begin to reduce one bucket."""
        raise TypeError(f"{type(self).__name__} defines no start()")

    def backward(self, loss: Tensor) -> None:
        """See Strategy.  Raises ValueError if the gradients of an earlier step are still there."""
        if self._reduced and self.has_gradients():
            raise ValueError("these gradients were reduced already, and would be again: call "
                             "zero_grad() first, or add up microbatches inside no_sync()")
        super().backward(loss)

    def before_backward(self, loss: Tensor) -> None:
        """See Strategy."""
        self.order.before_backward(loss)

    def after_backward(self) -> None:
        """See Strategy."""
        self.order.after_backward()
        for _, work in self.works:
            work.wait()
        self.works.clear()

    def _launch(self, i: int) -> None:
        run = self.buckets[i]
        for parameter in run.parameters:        # a parameter that was not used counts as 0
            if parameter.grad is None:
                parameter.slot.grad = parameter.slot.grad_buffer()
                parameter.slot.grad[...] = 0
        self.works.append((run, self.start(run)))


class DistributedDataParallel(Bucketed):
    """Every rank holds the whole model; `comm_hook(comm, flat)`, if given, sums a bucket."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = 25.0,
                 first_bucket_mb: float = 1.0, comm_hook: Reduction | None = None):
        super().__init__(model, comm, bucket_mb, first_bucket_mb)
        self.comm_hook = comm_hook

    def start(self, run: Bucket) -> Work:
        """See Bucketed."""
        if self.comm_hook is not None:
            return start(self.comm_hook, self.comm, run.grad)
        return start(self.wire.all_reduce, self.comm, run.grad, key=run)
