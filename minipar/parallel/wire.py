"""The wire: how gradients, or gathered weights, are encoded in the messages of a strategy.

    DistributedDataParallel(model, comm)                                   float32, 4 bytes a number
    DistributedDataParallel(model, comm, wire=LowPrecisionWire(BFLOAT16))  2 bytes a number

A strategy takes its `wire` when it is made: gradients go through it.  Weights are gathered as they
are, unless the strategy takes a `gather_wire` too.  `low_precision_wire.py` has the wire that sends
bfloat16 or float16; `compress/messages` the one that sends 8 or 4 bits.
"""

from collections.abc import Callable, Hashable

from ..backend import Array
from ..comm.collectives import all_gather, all_reduce, reduce_scatter


class Wire:
    """Sends numbers as they are: its methods are the collectives.  Base of wires that encode them.

    A strategy calls them with the options that are shown here.
    """

    all_reduce: Callable[..., Array] = staticmethod(all_reduce)             # out=flat
    reduce_scatter: Callable[..., Array] = staticmethod(reduce_scatter)     # counts=, in_place=True
    all_gather: Callable[..., Array] = staticmethod(all_gather)             # counts=, out=

    def of(self, key: Hashable) -> "Wire":
        """The wire for one array, whose `key` is the same in every step.

        Error feedback keeps a residual for each.
        """
        return self

    def start_batch(self, scale: float) -> None:
        """Begin a batch whose gradients are multiplied by `scale`, the loss scale."""


UNCOMPRESSED = Wire()
