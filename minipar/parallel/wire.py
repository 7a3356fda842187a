"""How numbers travel when ranks sum gradients or gather parameters: as they are, or as codes.

    strategy.wire = LowPrecisionWire(BFLOAT16)    2 bytes for each of 2Ψ(p-1)/p numbers, not 4

Codes are added by a function of the format, which rounds every sum: in a ring p - 1 times, once by
each rank, in one order, so that every rank gets the same bits.  The error is about p · 2⁻⁸ of Σ |g|
in bfloat16 and p · 2⁻¹¹ in float16, whose sums are infinite above 65504.  (Nothing is divided by
the number of ranks: the loss was divided before.)
"""

from collections.abc import Hashable, Sequence

from ..backend import Array, record_allocation
from ..comm import Communicator
from ..comm.collectives import all_gather, all_reduce, reduce_scatter
from ..number_formats import Format


class Wire:
    """Numbers as they are.

    `of` is whose gradients these are, the same in every step: other sums may remember something of
    each (`compress/collectives.py`).
    """

    def start_batch(self, scale: float) -> None:
        """A batch begins, whose gradients are `scale` times what they should be."""

    def all_reduce(self, comm: Communicator, flat: Array, key: Hashable = None) -> Array:
        """The sum over the ranks of `comm`, in place."""
        return all_reduce(comm, flat, out=flat)

    def reduce_scatter(self, comm: Communicator, flat: Array, counts: Sequence[int],
                       key: Hashable = None) -> Array:
        """This rank's piece, of counts[rank] numbers, of the sum, in its place in `flat`."""
        return reduce_scatter(comm, flat, counts=counts, in_place=True)

    def all_gather(self, comm: Communicator, piece: Array, counts: Sequence[int],
                   out: Array) -> Array:
        """The pieces of all ranks, of counts[rank] numbers, in `out`."""
        return all_gather(comm, piece, counts=counts, out=out)


class LowPrecisionWire(Wire):
    """Numbers as codes of `fmt`, on the way and in the sums."""

    def __init__(self, fmt: Format):
        self.fmt = fmt

    def _codes(self, numbers: Array) -> Array:
        return record_allocation("communication", self.fmt.encode(numbers))

    def all_reduce(self, comm: Communicator, flat: Array, key: Hashable = None) -> Array:
        """See Wire."""
        codes = self._codes(flat)
        all_reduce(comm, codes, op=self.fmt.add, algorithm="ring", out=codes)
        flat[...] = self.fmt.decode(codes)
        return flat

    def reduce_scatter(self, comm: Communicator, flat: Array, counts: Sequence[int],
                       key: Hashable = None) -> Array:
        """See Wire."""
        codes = reduce_scatter(comm, self._codes(flat), op=self.fmt.add, algorithm="ring",
                               counts=counts, in_place=True)
        start = sum(counts[:comm.rank])
        piece = flat[start:start + counts[comm.rank]]
        piece[...] = self.fmt.decode(codes)
        return piece

    def all_gather(self, comm: Communicator, piece: Array, counts: Sequence[int],
                   out: Array) -> Array:
        """See Wire: all pieces are rounded, this rank's too."""
        codes = all_gather(comm, self.fmt.encode(piece), counts=counts)
        record_allocation("communication", codes)
        out[...] = self.fmt.decode(codes)
        return out


UNCOMPRESSED = Wire()
