"""A wire of 2 bytes a number: gradients are sent and summed in bfloat16 or float16.

    make_strategy("zero1", model, mesh, wire=LowPrecisionWire(BFLOAT16))
    make_strategy("fsdp", model, mesh, gather_wire=LowPrecisionWire(BFLOAT16))   gathered weights

Codes are added by a function of the format, which rounds every sum.  In a ring a number is rounded
p - 1 times, each time on another rank, and then sent to all.  So every rank gets the same bits.
The error is about p · 2⁻⁸ of Σ |g| in bfloat16 and p · 2⁻¹¹ in float16, whose sums are infinite
above 65504.  The sum is not divided by the number of ranks: the loss was divided before.
"""

from collections.abc import Sequence

from ...backend import Array, record_allocation
from ...comm import Communicator
from ...comm.collectives import all_gather, all_reduce, reduce_scatter
from ...number_formats import Format
from .wire import Wire


class LowPrecisionWire(Wire):
    """Sends numbers as codes of `fmt`, and adds the codes."""

    def __init__(self, fmt: Format):
        self.fmt = fmt

    def _encode(self, numbers: Array) -> Array:
        return record_allocation("communication", self.fmt.encode(numbers))

    def all_reduce(self, comm: Communicator, array: Array, *, out: Array) -> Array:
        """The rounded sum over the ranks of `comm`, in `out`."""
        codes = self._encode(array)
        all_reduce(comm, codes, op=self.fmt.add, algorithm="ring", out=codes)
        out[...] = self.fmt.decode(codes)
        return out

    def reduce_scatter(self, comm: Communicator, flat: Array, *, counts: Sequence[int],
                       in_place: bool = True) -> Array:
        """This rank's piece of the rounded sum, at its place in `flat`."""
        codes = reduce_scatter(comm, self._encode(flat), op=self.fmt.add, algorithm="ring",
                               counts=counts, in_place=True)
        start = sum(counts[:comm.rank])
        piece = flat[start:start + counts[comm.rank]]
        piece[...] = self.fmt.decode(codes)
        return piece

    def all_gather(self, comm: Communicator, piece: Array, *, counts: Sequence[int],
                   out: Array) -> Array:
        """The pieces of all ranks in `out`, all of them rounded, this rank's too."""
        codes = all_gather(comm, self.fmt.encode(piece), counts=counts)
        out[...] = self.fmt.decode(record_allocation("communication", codes))
        return out


def encode(array: Array, fmt: Format | None) -> Array:
    """The message for `array`: codes of `fmt`, or the array itself if there is no format."""
    return array if fmt is None else fmt.encode(array)


def decode(message: Array, fmt: Format | None) -> Array:
    """The array of a message that `encode` made."""
    return message if fmt is None else fmt.decode(message)
