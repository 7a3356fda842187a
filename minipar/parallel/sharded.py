"""Gradients that are reduced as soon as they are whole, and kept in pieces: ZeRO-2 and FSDP."""

from collections.abc import Callable, Sequence

import numpy as np

from ..autograd import Tensor
from ..backend import Array, allocated
from ..comm import Communicator
from ..comm.collectives import reduce_scatter
from ..comm.work import Work, start
from ..nn import Parameter
from ..nn.slab import Segment
from ..optim import Optimizer
from .order import InOrder
from .shards import Shard
from .strategy import NOT_REDUCED, Strategy


class PassingGradient:
    """The whole gradient of a run, which exists from its first contribution until it is reduced.

    `before` is called when it is about to be allocated.
    """

    def __init__(self, parameters: Sequence[Parameter], layout: Sequence[Segment], like: Array,
                 before: Callable[[], None] = lambda: None):
        self.parameters, self.size, self.like = list(parameters), layout[-1].stop, like
        self.flat: Array | None = None
        self.before = before
        for parameter, segment in zip(parameters, layout):
            parameter.slot.place = lambda s=segment: self.whole()[s.start:s.stop].reshape(s.shape)

    def whole(self) -> Array:
        """The flat array; a parameter's first contribution is written to its place, not added."""
        if self.flat is None:
            self.before()
            self.flat = allocated("gradients", np.empty_like(self.like, shape=self.size))
        return self.flat

    def take(self) -> Array:
        """Hand it over, zeros where nothing came, and forget it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.slot.place()[...] = 0
            parameter.slot.grad = None
        flat, self.flat = self.flat, None
        return flat


class ShardedGradients(Strategy):
    """A run's gradient exists only until it is reduced.

    `shards` and `gradients`, in the order in which backward is expected to fill them.  At most one
    reduction is under way; it ends before the next gradient is allocated.
    """

    keeps_gradients = False
    work: tuple[Shard, Work] | None = None

    def watch(self, shards: list[Shard], gradients: list[PassingGradient],
              comm: Communicator) -> None:
        """Reduce these from now on, over `comm`."""
        self.shards, self.gradients, self.reduce_comm = shards, gradients, comm
        for gradient in gradients:
            gradient.before = self.settle
        self.order = InOrder([shard.parameters for shard in shards], self._launch)

    def _launch(self, i: int) -> None:
        flat, shard = self.gradients[i].take(), self.shards[i]
        self.settle()
        self.work = shard, start(reduce_scatter, self.reduce_comm, flat, counts=shard.counts,
                                 in_place=True)

    def settle(self) -> None:
        """Wait for the reduction under way, and keep this rank's piece."""
        if self.work is not None:
            (shard, work), self.work = self.work, None
            self.keep(shard, work.wait())

    def keep(self, shard: Shard, piece: Array) -> None:
        """What becomes of a piece once it is reduced."""
        shard.add(piece)

    def begin(self, loss: Tensor) -> None:
        """See Strategy."""
        self.order.begin(loss)

    def finish(self) -> None:
        """See Strategy."""
        self.order.finish()
        self.settle()

    def step(self, optimizer: Optimizer) -> None:
        """See Strategy.  Raises ValueError if there are gradients that nobody has reduced."""
        if any(p.grad is not None for shard in self.slabs for p in shard.parameters):
            raise ValueError(NOT_REDUCED)
        optimizer.step()
