"""Gradients that are reduced as soon as they are whole, and kept in pieces: ZeRO-2 and FSDP."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ...autograd import Tensor
from ...backend import Array, record_allocation
from ...backend.mapped_file import page_out
from ...comm import Communicator
from ...comm.work import Work, start
from ...nn import Parameter
from ...nn.slab import Segment
from ..data.order import OrderedLauncher
from ..shards import Shard
from ..strategy import Strategy
from ..wire import UNCOMPRESSED, Wire


def check_whole(named: Iterable[tuple[str, Parameter]]) -> None:
    """Raise ValueError if a parameter is cut already: a shard of it would not know its axes."""
    for name, parameter in named:
        if parameter.shape != parameter.global_shape:
            raise ValueError(f"{name} is cut over tensor-parallel ranks already, {parameter.shape} "
                             f"of {parameter.global_shape}: give the plain model and a mesh with "
                             "dp and tp to make_hybrid(), with data_parallel=\"zero1\" or \"fsdp\"")


class TransientGradient:
    """The whole gradient of a run, which exists from its first contribution until it is reduced.

    `before` is called when it is about to be allocated.
    """

    def __init__(self, parameters: Sequence[Parameter], layout: Sequence[Segment], like: Array,
                 before: Callable[[], None] = lambda: None):
        self.parameters, self.size, self.like = list(parameters), layout[-1].stop, like
        self.flat: Array | None = None
        self.before = before
        for parameter, segment in zip(parameters, layout):
            parameter.slot.grad_buffer = lambda s=segment: (
                self.whole()[s.start:s.stop].reshape(s.shape))

    def whole(self) -> Array:
        """The flat array; a parameter's first contribution is written to its place, not added."""
        if self.flat is None:
            self.before()
            self.flat = record_allocation("gradients", np.empty_like(self.like, shape=self.size))
        return self.flat

    def take(self) -> Array:
        """Hand it over, zeros where nothing came, and forget it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.slot.grad_buffer()[...] = 0
            parameter.slot.grad = None
        flat, self.flat = self.flat, None
        return flat


class GradientReducer:
    """Reduce-scatters of `gradients`, over `comm`, to `shards`.

    At most one is under way; it ends before the next gradient is allocated.  `keep(shard, piece)`
    is called when a piece is reduced.
    """

    def __init__(self, shards: Sequence[Shard], gradients: Sequence[TransientGradient],
                 comm: Communicator, keep: Callable[[Shard, Array], None] = Shard.add):
        self.shards, self.gradients, self.comm, self.keep = shards, gradients, comm, keep
        self.wire: Wire = UNCOMPRESSED
        self.work: tuple[Shard, Work] | None = None
        for gradient in gradients:
            gradient.before = self.settle

    def launch(self, i: int) -> None:
        """Begin to reduce gradient number i, which is whole."""
        flat, shard = self.gradients[i].take(), self.shards[i]
        self.settle()
        self.work = shard, start(self.wire.reduce_scatter, self.comm, flat, shard.counts,
                                 key=shard)

    def settle(self) -> None:
        """Wait for the reduction under way, and keep this rank's piece."""
        if self.work is not None:
            (shard, work), self.work = self.work, None
            self.keep(shard, work.wait())


class ShardedGradients(Strategy):
    """A run's gradient exists only until it is reduced, in the order in which backward fills them.
    """

    can_accumulate = False
    reductions: GradientReducer | None = None

    def watch(self, shards: Sequence[Shard], gradients: Sequence[TransientGradient],
              comm: Communicator) -> None:
        """Reduce these from now on, over `comm`, in this order."""
        self.reductions = GradientReducer(shards, gradients, comm, self.keep)
        self.reductions.wire = self.wire
        self.order = OrderedLauncher([shard.parameters for shard in shards], self.reductions.launch)

    def keep(self, shard: Shard, piece: Array) -> None:
        """What becomes of a piece once it is reduced."""
        shard.add(piece)
        page_out(shard.grad)

    def before_backward(self, loss: Tensor) -> None:
        """See Strategy."""
        self.order.before_backward(loss)

    def after_backward(self) -> None:
        """See Strategy."""
        self.order.after_backward()
        self.reductions.settle()
