"""Messages in a narrow format, whatever the strategy: gradients, activations, gathered weights.

    reduce_in(strategy, BFLOAT16)       gradients are summed over the ranks in bfloat16
    send_in(strategy, BFLOAT16)         activations travel so: between stages, and over tp
    gather_in(strategy, BFLOAT16)       fsdp's weights travel so, to modules that round them anyway

Between stages nothing is lost where the model computes in that format (`memory/precision.py`): what
an operation returns is rounded already.  Over tp partial sums are rounded once more, in each round
of the ring.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ..autograd import Function, Tensor
from ..backend import Array
from ..comm import Communicator, collectives
from ..number_formats import Format
from .conjugate import conjugate
from .data.data_parallel import DataParallel
from .hybrid import Hybrid
from .pipeline.executor import Pipeline
from .strategy import Strategy
from .tensor.layers import TOKENS, SequenceSplit, TensorSplit, retype
from .wire import LowPrecisionWire, Wire
from .zero.zero1 import ZeRO3


def reduce_in(strategy: Strategy, how: Format | Wire) -> None:
    """Gradients are summed over data-parallel ranks as codes of a format, or by another `Wire`.

    The one sum over stages, of a tied embedding, stays in float32.  Raises ValueError for dp, whose
    rank 0 adds up what it is sent, and for zero3 with other sums than those of a format.
    """
    if isinstance(strategy, DataParallel):
        raise ValueError("dp sums gradients on rank 0, one by one: for sums in another format "
                         "choose ddp")
    wire = _wire(how)
    if isinstance(strategy, ZeRO3) and not isinstance(wire, LowPrecisionWire):
        raise ValueError("zero3 sums gradients in its graph, one use of a weight at a time: for "
                         "sums of another kind choose fsdp")
    strategy.wire = wire
    for of in (strategy, getattr(strategy, "pipeline", None)):
        if getattr(of, "reductions", None) is not None:     # fsdp's, beside pp and tp
            of.reductions.wire = strategy.wire
    if isinstance(strategy, ZeRO3):         # the sums are in its graph
        operation, _ = _pair(_all_gather_wide, _reduce_scatter, wire.fmt)
        strategy.sharded.all_gather = lambda x, comm, total: operation.apply(
            x, comm=comm, dim=0, total=total)


def gather_in(strategy: Strategy, how: Format | Wire) -> None:
    """FSDP's units are gathered as codes of a format, or by another `Wire`; every use sees rounded
    weights, and the optimizer whole ones.

    Raises ValueError for a strategy that gathers no weights for a use.
    """
    owner = strategy.pipeline if isinstance(strategy, Hybrid) else strategy
    if not hasattr(owner, "prefetcher"):
        raise ValueError(f"{type(strategy).__name__} gathers no units of weights: choose fsdp")
    for unit in owner.prefetcher.units:
        unit.wire = _wire(how)


def _wire(how: Format | Wire) -> Wire:
    return how if isinstance(how, Wire) else LowPrecisionWire(how)


def send_in(strategy: Strategy, fmt: Format) -> None:
    """Activations, and their gradients, are sent as codes between stages and over tp."""
    pipeline = strategy.pipeline if isinstance(strategy, Hybrid) else strategy
    if isinstance(pipeline, Pipeline):
        pipeline.activation_format = fmt
    split = getattr(strategy.model, "split", None)
    if split is not None:
        retype(split, LowPrecisionSequenceSplit if isinstance(split, SequenceSplit)
               else LowPrecisionTensorSplit, fmt=fmt)


def _identity(comm: Communicator, array: Array, fmt: Format, **options: Any) -> Array:
    return array


def _all_gather_wide(comm: Communicator, array: Array, fmt: Format, dim: int,
                     total: int) -> Array:
    return collectives.all_gather(comm, array, dim, total)


def _all_reduce(comm: Communicator, array: Array, fmt: Format) -> Array:
    return fmt.decode(collectives.all_reduce(comm, fmt.encode(array), fmt.add, "ring"))


def _all_gather(comm: Communicator, array: Array, fmt: Format, dim: int, total: int) -> Array:
    return fmt.decode(collectives.all_gather(comm, fmt.encode(array), dim, total))


def _reduce_scatter(comm: Communicator, array: Array, fmt: Format, dim: int, total: int) -> Array:
    return fmt.decode(collectives.reduce_scatter(comm, fmt.encode(array), dim, fmt.add, "ring"))


@cache
def _pair(forward: Callable, backward: Callable, fmt: Format) -> tuple[type[Function], ...]:
    """See `conjugate`: two collectives that send codes of `fmt`."""
    return conjugate(partial(forward, fmt=fmt), partial(backward, fmt=fmt))


class LowPrecisionTensorSplit(TensorSplit):
    """See TensorSplit; its messages are codes of `fmt`."""

    fmt: Format

    def enter(self, x: Tensor) -> Tensor:
        """See TensorSplit."""
        return _pair(_identity, _all_reduce, self.fmt)[0].apply(x, comm=self.tp)

    def leave(self, y: Tensor) -> Tensor:
        """See TensorSplit."""
        return _pair(_identity, _all_reduce, self.fmt)[1].apply(y, comm=self.tp)


class LowPrecisionSequenceSplit(SequenceSplit):
    """See SequenceSplit; its messages are codes of `fmt`."""

    fmt: Format

    def enter(self, x: Tensor) -> Tensor:
        """See SequenceSplit."""
        return _pair(_all_gather, _reduce_scatter, self.fmt)[0].apply(
            x, comm=self.tp, dim=TOKENS, total=x.shape[TOKENS] * self.tp.size)

    def leave(self, y: Tensor) -> Tensor:
        """See SequenceSplit."""
        return _pair(_all_gather, _reduce_scatter, self.fmt)[1].apply(
            y, comm=self.tp, dim=TOKENS, total=y.shape[TOKENS])
