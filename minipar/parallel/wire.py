"""The wire: how gradients, or gathered weights, are encoded in the messages of a strategy.

    DistributedDataParallel(model, comm)                                   float32, 4 bytes a number
    DistributedDataParallel(model, comm, wire=LowPrecisionWire(BFLOAT16))  2 bytes a number

A strategy takes its `wire` when it is made: gradients go through it.  Weights are gathered as they
are, unless the strategy takes a `gather_wire` too.  `low_precision_wire.py` has the wire that sends
bfloat16 or float16; `compress/messages` the one that sends 8 or 4 bits.
"""

from collections.abc import Hashable, Sequence

from ..backend import Array
from ..comm import Communicator
from ..comm.collectives import all_gather, all_reduce, reduce_scatter


class Wire:
    """Sends numbers as they are; base of the wires that encode them.

    `key` names the array and is the same in every step, so that error feedback can keep one
    residual for each.
    """

    def start_batch(self, scale: float) -> None:
        """Begin a batch whose gradients are multiplied by `scale`, the loss scale."""

    def all_reduce(self, comm: Communicator, flat: Array, key: Hashable = None) -> Array:
        """The sum over the ranks of `comm`, in place."""
        return all_reduce(comm, flat, out=flat)

    def reduce_scatter(self, comm: Communicator, flat: Array, counts: Sequence[int],
                       key: Hashable = None) -> Array:
        """This rank's piece of the sum, counts[rank] numbers, at its place in `flat`."""
        return reduce_scatter(comm, flat, counts=counts, in_place=True)

    def all_gather(self, comm: Communicator, piece: Array, counts: Sequence[int],
                   out: Array) -> Array:
        """The pieces of all ranks, counts[r] numbers from rank r, in `out`."""
        return all_gather(comm, piece, counts=counts, out=out)


UNCOMPRESSED = Wire()
