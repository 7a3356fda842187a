"""Gradients that are reduced as soon as they are complete, and kept in pieces: ZeRO-2 and FSDP.

    backward      ▓▓ h.2 ▓▓ ▓▓ h.1 ▓▓ ▓▓ h.0 ▓▓
    whole         ████████▁ ████████▁ ████████▁       one whole gradient at a time,
    reduced              ░░░░░░    ░░░░░░    ░░░░░░   then 1/p of it on each rank

So gradients take Ψ/p elements and one bucket or unit more, instead of Ψ.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from ...autograd import Tensor
from ...backend import Array, record_allocation
from ...backend.mapped_file import page_out
from ...comm import Communicator
from ...comm.work import Work, start_work
from ...nn.slab import Segment
from ..data.reduction_queue import ReductionQueue
from ..shards import Shard
from ..strategy import Strategy
from ..wire import UNCOMPRESSED, Wire


class TransientGradient:
    """The whole flat gradient of `parameters`, from its first contribution until it is reduced.

    `before_allocation` is called when a new one is about to be allocated.
    """

    def __init__(self, parameters: Sequence[Tensor], layout: Sequence[Segment], like: Array,
                 before_allocation: Callable[[], None] = lambda: None):
        self.parameters, self.size, self.like = list(parameters), layout[-1].stop, like
        self.flat: Array | None = None
        self.before_allocation = before_allocation
        for parameter, segment in zip(parameters, layout):
            parameter.slot.get_grad_buffer = partial(self._view, segment)

    def _view(self, segment: Segment) -> Array:
        return self.whole()[segment.start:segment.stop].reshape(segment.shape)

    def whole(self) -> Array:
        """The flat array, allocated at the first call and not initialized."""
        if self.flat is None:
            self.before_allocation()
            flat = np.empty(self.size, self.like.dtype, like=self.like)
            self.flat = record_allocation("gradients", flat)
        return self.flat

    def take(self) -> Array:
        """The flat array, zeros where no gradient arrived; this object forgets it."""
        for slot in (parameter.slot for parameter in self.parameters):
            slot.fill_if_missing()
            slot.grad = None
        flat, self.flat = self.flat, None
        return flat


class GradientReducer:
    """Reduce-scatters whole `gradients` over `comm` into pieces, for `shards`.

    At most one reduction is under way; it ends before the next gradient is allocated.
    on_reduced(shard, piece) is called with each piece.  A shard that is cut over other ranks than
    `comm`, as of experts over edp, is reduced over own_comms[shard.comm].
    """

    def __init__(self, shards: Sequence[Shard], gradients: Sequence[TransientGradient],
                 comm: Communicator, on_reduced: Callable[[Shard, Array], None] = Shard.add,
                 wire: Wire = UNCOMPRESSED,
                 own_comms: Mapping[Communicator, Communicator] = MappingProxyType({})):
        self.shards, self.gradients, self.comm = shards, gradients, comm
        self.on_reduced, self.wire, self.own_comms = on_reduced, wire, own_comms
        self.pending: tuple[Shard, Work] | None = None
        for gradient in gradients:
            gradient.before_allocation = self.wait

    def start(self, i: int) -> None:
        """Begin to reduce gradients[i], which is complete."""
        flat, shard = self.gradients[i].take(), self.shards[i]
        self.wait()
        comm = self.own_comms.get(shard.comm, self.comm)
        self.pending = shard, start_work(self.wire.reduce_scatter, comm, flat, shard.counts,
                                         key=shard)

    def wait(self) -> None:
        """Wait for the reduction under way, and hand over this rank's piece."""
        if self.pending is not None:
            (shard, work), self.pending = self.pending, None
            self.on_reduced(shard, work.wait())


class ShardedGradients(Strategy):
    """Base of the strategies that keep gradients in pieces: ZeRO-2 and FSDP."""

    can_accumulate = False
    reducer: GradientReducer

    def reduce_to(self, shards: Sequence[Shard], gradients: Sequence[TransientGradient],
                  comm: Communicator) -> None:
        """From now on, reduce each of `gradients` to its shard, in this order."""
        self.reducer = GradientReducer(shards, gradients, comm, self.on_reduced, self.wire)
        self.reduction_queue = ReductionQueue([each.parameters for each in shards],
                                              self.reducer.start)

    def on_reduced(self, shard: Shard, piece: Array) -> None:
        """Add a reduced piece to the gradient of its shard."""
        shard.add(piece)
        page_out(shard.grad)

    def before_backward(self, loss: Tensor) -> None:
        """Find the parameters that `loss` uses: a reduction waits for their gradients only."""
        self.reduction_queue.before_backward(loss)

    def after_backward(self) -> None:
        """Reduce the gradients that are left; wait for the last reduction."""
        self.reduction_queue.after_backward()
        self.reducer.wait()
