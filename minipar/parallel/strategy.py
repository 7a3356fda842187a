"""What every data-parallel strategy answers to, so that one loop trains with any of them.

    strategy = DistributedDataParallel(model, comm)
    optimizer = AdamW(strategy.slabs)                   what this rank optimizes: slabs, or shards
    loss = strategy.forward_backward(microbatches)      gradients of the whole batch, in the slabs
    clip_grad_norm(strategy.slabs, 1.0)
    strategy.step(optimizer)                            and everyone has the new parameters

No strategy divides: the loss of a microbatch is a sum over its targets divided by the number of
targets of the whole batch, over all ranks and microbatches, so that gradients simply add up.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np

from ..autograd import GradientSlot, Tensor, backward, count_targets
from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_gather, chunk_bounds
from ..comm.work import progress
from ..nn import Module
from ..optim import Optimizer, clip_grad_norm
from ..random import training_step
from .data.graph import global_loss
from .wire import UNCOMPRESSED, Wire

NOT_REDUCED = ("these gradients are still those of this rank alone: call strategy.backward(loss) "
               "instead of loss.backward(), and run the last microbatches outside no_sync()")


class Microbatch(NamedTuple):
    """What `model.loss` takes, and the global numbers of the samples (dropout needs them)."""

    inputs: Array
    targets: Array
    samples: Array


class Strategy:
    """One way of training `model` on the ranks of `comm`; this one computes on a single rank."""

    can_accumulate = True       # whether several backwards may add up before they are reduced
    wire: Wire = UNCOMPRESSED   # how gradients travel

    def __init__(self, model: Module, comm: Communicator):
        if not all(parameter.initialized for parameter in model.parameters()):
            raise ValueError("the model has no numbers: call model.initialize(seed) first, and "
                             "give it to one strategy only")
        self.slabs = list(model.slabs)
        self._take(model, comm)
        self._watch_gradients()

    def _take(self, model: Module, comm: Communicator) -> None:
        self.model, self.comm = model, comm
        self.is_synchronizing, self._asked = True, None
        self._reduced = False       # whether no gradient came since the last reduction

    def _watch_gradients(self) -> None:
        """Know from now on whether gradients came that were not reduced."""
        for parameter in self.model.parameters():
            parameter.slot.ready_hooks.append(self._gradient_came)

    def _gradient_came(self, slot: GradientSlot) -> None:
        self._reduced = False

    def has_gradients(self) -> bool:
        """Whether a parameter of the model has a gradient on this rank."""
        return any(parameter.grad is not None for parameter in self.model.parameters())

    def rows(self, num_rows: int) -> range:
        """Which rows of a batch of so many this rank is given."""
        return range(*chunk_bounds(num_rows, self.comm.size)[self.comm.rank])

    def forward_context(self) -> AbstractContextManager:
        """Context in which a loss is computed that `backward` will be called with."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Gradients of `loss`; reduced over the ranks, unless inside `no_sync`."""
        if self.is_synchronizing:
            self.before_backward(loss)
        backward(loss, poll=self._poll)
        self._synchronize()

    def _synchronize(self) -> None:
        """After every backward, by whatever way: reduce, unless inside `no_sync`."""
        if self.is_synchronizing:
            self.after_backward()
            self._reduced = True

    def before_backward(self, loss: Tensor) -> None:
        """Before a backward whose gradients are to be reduced."""

    def after_backward(self) -> None:
        """After it: wait until they are."""

    def step(self, optimizer: Optimizer) -> None:
        """Let the optimizer step, and give everyone the new parameters.

        Raises ValueError if there are gradients that were not reduced.
        """
        if not self._reduced and self.has_gradients():
            raise ValueError(NOT_REDUCED)
        self.update(optimizer)

    def update(self, optimizer: Optimizer) -> None:
        """`step`, with gradients that are known to be reduced."""
        optimizer.step()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients down to a global norm of `max_norm`; return the norm before."""
        return float(clip_grad_norm(self.slabs, max_norm))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients only add up on their rank, for the next backward to reduce.

        Raises ValueError for a strategy that has no room for them.
        """
        if not self.can_accumulate:
            raise ValueError(f"{type(self).__name__} keeps no whole gradient that could add up: "
                             "it reduces after every backward; leave no_sync() out")
        before, self.is_synchronizing = self.is_synchronizing, False
        try:
            yield
        finally:
            self.is_synchronizing = before

    def count_targets(self, microbatches: Sequence[Microbatch]) -> int:
        """This rank's share of the number of targets: over all ranks the shares add up."""
        return sum(count_targets(batch.targets, self.model.ignore_index) for batch in microbatches)

    def forward_backward(self, microbatches: Sequence[Microbatch], seed: int = 0, step: int = 0,
                         scale: float = 1.0) -> float:
        """Compute the gradients of the whole batch; return its loss.  Collective.

        Each rank passes the same number of microbatches, with its own rows; a microbatch may have
        no target or no row.  Afterwards `slabs` hold the gradients of the batch, times `scale`.
        """
        num_targets = agree_on_batch(self.comm, self.count_targets(microbatches), len(microbatches))
        self.wire.start_batch(scale)
        loss = self.run_batch(microbatches, num_targets / scale, seed, step)
        return global_loss(self.comm, loss) / scale

    def run_batch(self, microbatches: Sequence[Microbatch], num_targets: float, seed: int = 0,
            step: int = 0) -> float:
        """Forward and backward of all microbatches; this rank's share of the loss."""
        loss, last = 0.0, len(microbatches) - 1
        for i, batch in enumerate(microbatches):
            waits = self.can_accumulate and i < last
            with self.no_sync() if waits else nullcontext():
                loss += self.run_microbatch(batch, num_targets, seed, step)
        return loss

    def run_microbatch(self, batch: Microbatch, num_targets: float, seed: int = 0,
                       step: int = 0) -> float:
        """Forward and backward of one microbatch; this rank's share of the loss."""
        with training_step(seed, step, batch.samples), self.forward_context():
            loss = self.model.loss(batch.inputs, batch.targets, num_targets)
        self.backward(loss)
        return float(loss.data)

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every parameter by its full name; all ranks must call it."""
        return {name: values for slab in self.slabs
                for name, values in slab.named(slab.data).items()}

    def _poll(self) -> None:
        """Between two operations of backward: let messages that are under way go on."""
        now = self.comm.now()
        if now != self._asked:          # asking again at one virtual time would wait for more
            self._asked = now
            progress(self.comm)


def agree_on_batch(comm: Communicator, num_local: int, num_microbatches: int) -> float:
    """How many targets count over all ranks (at least 1), by one control message.

    Raises ValueError, on every rank, unless all have as many microbatches, and at least one.
    """
    with comm.labelled("control"):
        counts = all_gather(comm, np.array([[num_local, num_microbatches]], np.float64))    # (p, 2)
    here = counts[:, 1].astype(int).tolist()
    other = next((rank for rank, number in enumerate(here) if number != here[0]), None)
    if other is not None:
        raise ValueError(f"rank 0 has {here[0]} microbatches, but rank {other} has {here[other]}: "
                         "all ranks take part in every one; give as many on each (one may have no "
                         "rows)")
    if not num_microbatches:
        raise ValueError("no microbatches: give at least one (it may have no rows)")
    return float(np.sum(counts[:, 0])) or 1.0
