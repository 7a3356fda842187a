"""Distributed data parallelism: each bucket of gradients is summed while backward goes on.

    backward     ▓▓ h.3 ▓▓▓▓ h.2 ▓▓▓▓ h.1 ▓▓▓▓ h.0 ▓▓
    messages           ░░ 0 ░░░░ 1 ░░░░ 2 ░░░░ 3 ░░       at best near max(B, M), not B + M

Every rank has the whole model and computes the gradients of its rows.  The parameters are grouped
into buckets, the last layers first.  When the last gradient of a bucket is ready, its all-reduce
begins, and goes on between the operations of backward (comm/work.py).  If backward takes B seconds
and all messages M, both take the longer of two at best: B plus the last bucket's message, which no
computation hides; or the time until the first bucket is ready, plus M.  Afterwards every rank has
the same summed gradients and takes the same step.

Cost: on rings each of p ranks sends 2Ψ(p-1)/p elements, for Ψ parameters.  For short buckets "auto"
may choose an algorithm of fewer rounds and more bytes.  Li et al. 2020, PyTorch Distributed:
Experiences on Accelerating Data Parallel Training.
"""

from collections.abc import Callable

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.work import Work, start_work
from ...nn import Module
from ..errors import reduced_already_error
from ..replicas import broadcast_parameters
from ..strategy import Strategy
from ..wire import UNCOMPRESSED, Wire
from .buckets import BUCKET_MB, bucket_limits, make_buckets
from .reduction_queue import ReductionQueue

Reduction = Callable[[Communicator, Array], None]


class Bucketed(Strategy):
    """Base of the strategies that reduce gradients bucket by bucket: DDP and ZeRO-1."""

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = BUCKET_MB,
                 first_bucket_mb: float = 1.0, wire: Wire = UNCOMPRESSED):
        super().__init__(model, comm, wire)
        self.buckets = make_buckets(model.slabs, bucket_limits(first_bucket_mb, bucket_mb))
        broadcast_parameters(model, comm)
        self.reduction_queue = ReductionQueue([each.parameters for each in self.buckets],
                                              self.on_bucket_ready)
        self.works: list[Work] = []             # one for each reduction under way

    def reduce_bucket(self, i: int) -> Work:
        """Begin to reduce bucket i over the ranks."""
        raise TypeError(f"{type(self).__name__} defines no reduce_bucket()")

    def backward(self, loss: Tensor) -> None:
        """Compute and reduce the gradients.

        Raises ValueError if gradients of an earlier backward were reduced, and not cleared by
        zero_grad.
        """
        if self._is_reduced and self.has_gradients():
            raise reduced_already_error()
        super().backward(loss)

    def before_backward(self, loss: Tensor) -> None:
        """Find what `loss` uses: a bucket waits only for gradients that will come."""
        self.reduction_queue.before_backward(loss)

    def after_backward(self) -> None:
        """Start the buckets that received no gradient; wait until all are reduced."""
        self.reduction_queue.after_backward()
        for work in self.works:
            work.wait()
        self.works.clear()

    def on_bucket_ready(self, i: int) -> None:
        """Fill the gradients that will not come with zeros; begin to reduce bucket i."""
        for parameter in self.buckets[i].parameters:
            parameter.slot.fill_if_missing()
        self.works.append(self.reduce_bucket(i))


class DistributedDataParallel(Bucketed):
    """Every rank holds the whole model, and all-reduces its gradients.

    `comm_hook(comm, flat)`, if given, sums a bucket in place instead of the wire.
    """

    def __init__(self, model: Module, comm: Communicator, bucket_mb: float = BUCKET_MB,
                 first_bucket_mb: float = 1.0, comm_hook: Reduction | None = None,
                 wire: Wire = UNCOMPRESSED):
        super().__init__(model, comm, bucket_mb, first_bucket_mb, wire)
        self.comm_hook = comm_hook

    def reduce_bucket(self, i: int) -> Work:
        """Begin the all-reduce of bucket i."""
        bucket = self.buckets[i]
        if self.comm_hook is not None:
            return start_work(self.comm_hook, self.comm, bucket.grad)
        # the key is the same in every step, for wires with error feedback
        return start_work(self.wire.all_reduce, self.comm, bucket.grad, key=bucket)
