"""The interface that every training strategy implements, so that one training loop works with all.

    strategy = DistributedDataParallel(model, comm)
    optimizer = AdamW(strategy.slabs)                 this rank's slabs, or its shards of them
    loss = strategy.forward_backward(microbatches)    gradients of the whole batch, in the slabs
    strategy.clip_grad_norm(1.0)
    strategy.step(optimizer)                          every rank has the new parameters

A strategy overrides the steps at which it differs from training on one rank:

    forward_backward
      run_batch                       all microbatches; a pipeline runs its schedule here
        run_microbatch                forward inside forward_context()
          backward(loss)              the engine's backward, between:
            before_backward           DDP: prepare to reduce buckets while backward runs
            after_backward            DDP: wait until all buckets are reduced;
                                      pipelines: sum tied weights, once a batch
    step
      update                          ZeRO: step on a shard, then all-gather the parameters

No strategy divides by the number of ranks.  The loss of a microbatch is a sum over its targets,
divided by the number of targets of the whole batch, over all ranks and microbatches.  So gradients
simply add up.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import autograd, optim
from ..autograd import GradientSlot, Tensor
from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_gather, all_reduce, chunk_bounds, sum_over_ranks
from ..comm.progress import progress
from ..nn import Module
from ..random import training_step
from .errors import NO_VALUES_MESSAGE, NOT_REDUCED_MESSAGE, accumulation_error, microbatches_error
from .state import StrategyState
from .wire import UNCOMPRESSED, Wire

if TYPE_CHECKING:
    from ..comm import Trace
    from .pipeline.schedule.timeline import Timeline


class Microbatch(NamedTuple):
    """A rank's rows in one forward: the arguments of `model.loss`, and the samples' global numbers.

    Its arrays are on the rank's device.  A `data.Batch` has the same fields, on the host; its
    `split` cuts it into microbatches, for strategies that compute on the host.  The numbers of the
    samples determine the dropout masks.
    """

    inputs: Array
    targets: Array
    samples: Array


class Strategy(StrategyState):
    """Trains `model` on the ranks of `comm`; this base class reduces nothing: for a single rank.

    This rank optimizes `slabs`; `wire` encodes the gradients that the ranks send.
    """

    can_accumulate = True       # gradients of several backwards may add up before they are reduced

    def __init__(self, model: Module, comm: Communicator, wire: Wire = UNCOMPRESSED):
        self.model, self.comm, self.wire = model, comm, wire
        self.slabs = list(model.slabs)
        self.is_synchronizing = True                # False inside no_sync()
        self._is_reduced = False        # True from a reduction until the next gradient arrives
        self._last_poll: float | None = None
        self.check_values()
        self.watch_gradients()

    def check_values(self) -> None:
        """Raise ValueError if a parameter has no values yet."""
        if not all(parameter.initialized for parameter in self.model.parameters()):
            raise ValueError(NO_VALUES_MESSAGE)

    def watch_gradients(self) -> None:
        """Note each gradient that arrives, so that `step` can refuse gradients not reduced."""
        for parameter in self.model.parameters():
            parameter.slot.ready_hooks.append(self._on_gradient)

    def _on_gradient(self, slot: GradientSlot) -> None:
        self._is_reduced = False

    def has_gradients(self) -> bool:
        """True if a parameter of the model has a gradient on this rank."""
        return any(parameter.grad is not None for parameter in self.model.parameters())

    def rows(self, num_rows: int) -> range:
        """The rows of a batch of `num_rows` that this rank processes."""
        return range(*chunk_bounds(num_rows, self.comm.size)[self.comm.rank])

    def forward_context(self) -> AbstractContextManager:
        """The context in which to compute a loss before calling `backward` with it."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of `loss`; reduce them over the ranks, unless inside `no_sync`."""
        if self.is_synchronizing:
            self.before_backward(loss)
        autograd.backward(loss, poll=self._poll)
        self._finish_reductions()

    def _finish_reductions(self) -> None:
        """Finish the reductions of a backward, unless inside `no_sync`."""
        if self.is_synchronizing:
            self.after_backward()
            self._is_reduced = True

    def before_backward(self, loss: Tensor) -> None:
        """Prepare to reduce the gradients of this backward."""

    def after_backward(self) -> None:
        """Wait until all gradients are reduced."""

    def step(self, optimizer: optim.Optimizer) -> None:
        """Update the parameters on all ranks.  Raises ValueError if gradients are not reduced."""
        if not self._is_reduced and self.has_gradients():
            raise ValueError(NOT_REDUCED_MESSAGE)
        self.update(optimizer)

    def update(self, optimizer: optim.Optimizer) -> None:
        """Update the parameters on all ranks; the gradients are known to be reduced."""
        optimizer.step()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients down to a global norm of `max_norm`; return the norm before."""
        return float(optim.clip_grad_norm(self.slabs, max_norm))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients only add up on their rank; the next backward reduces them.

        Raises ValueError for a strategy that cannot accumulate.
        """
        if not self.can_accumulate:
            raise accumulation_error(type(self).__name__)
        before, self.is_synchronizing = self.is_synchronizing, False
        try:
            yield
        finally:
            self.is_synchronizing = before

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """The targets this rank counts; every target is counted on exactly one rank."""
        return sum(autograd.count_targets(m.targets, self.model.ignore_index) for m in microbatches)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Compute the gradients of the whole batch; return its loss.  Collective.

        Each rank passes the same number of microbatches, with its own rows; a microbatch may have
        no target or no row.  Afterwards `slabs` hold the gradients of the batch, times `scale`,
        the loss scale.  `seed` and the number of the `step` determine the dropout masks.
        """
        num_targets = sum_targets(self.comm, self.count_targets(microbatches), len(microbatches))
        self.wire.start_batch(scale)
        loss = self.run_batch(microbatches, num_targets / scale, seed, step)
        return sum_over_ranks(self.comm, loss) / scale

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Forward and backward of all microbatches; return this rank's share of the loss.

        Each loss is divided by `loss_divisor`, the global number of targets / loss scale.
        """
        loss, last = 0.0, len(microbatches) - 1
        for i, microbatch in enumerate(microbatches):
            accumulates = self.can_accumulate and i < last
            with self.no_sync() if accumulates else nullcontext():
                loss += self.run_microbatch(microbatch, loss_divisor, seed, step)
        return loss

    def run_microbatch(self, microbatch: Microbatch, loss_divisor: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of one microbatch; return this rank's share of the loss."""
        inputs, targets, samples = microbatch
        shares = self.shares(microbatch, loss_divisor)      # for routers of experts, see below
        with training_step(seed, step, samples, shares=shares,
                           sum_over_samples=self.sum_over_samples), self.forward_context():
            loss = self.model.loss(inputs, targets, loss_divisor)
        self.backward(loss)
        return float(loss.data)

    def timeline(self, trace: "Trace | None" = None) -> "Timeline | None":
        """Collective.  On rank 0 the timeline of a pipeline's last batch; None for others."""
        return None

    def _poll(self) -> None:
        """Advance pending messages; called between two operations of backward."""
        now = self.comm.now()
        if now != self._last_poll:      # a simulated clock stands still unless something happened
            self._last_poll = now
            progress(self.comm)

    # The rest is for routers of experts (nn/moe), whose losses are averages over the whole batch.
    counts_loads = True         # False: another rank counts the loads of the same tokens

    def shares(self, microbatch: Microbatch, loss_divisor: float) -> Array:
        """The share of each row in the batch's loss (rows,): its targets / `loss_divisor`."""
        counts = microbatch.targets != self.model.ignore_index
        return counts.sum(axis=tuple(range(1, counts.ndim))) / loss_divisor

    def sum_over_samples(self, array: np.ndarray) -> np.ndarray:
        """The sum over the ranks that have other samples.  Collective."""
        with self.comm.labelled("control"):
            return all_reduce(self.comm, array)


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
