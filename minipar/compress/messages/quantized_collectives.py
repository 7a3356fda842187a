"""Sums over ranks, and gathers, whose messages are small integers with a scale for each block.

    all_reduce     my pieces ──codes──▶ their owners      all_to_all:  (p-1)/p of all codes
                   owner: decode all, sum in float32
                   the sum ──codes──▶ everyone            all_gather:  (p-1)/p of all codes

    strategy.wire = QuantizedWire()         or reduce_in(strategy, QuantizedWire())

A number is rounded twice, whatever p is: by the rank that sends it, and in the sum.  A ring that
passed partial sums on as codes would round p - 1 times, each time with the coarser steps of a
longer sum, and its error, as a part of the sum, would grow with p.  All ranks decode the same
codes, the owner too: replicas stay equal to the last bit.  What stays at home, and all of it where
there is one rank, is not rounded.

Bytes sent by a rank, of n numbers that p divides into pieces, B(m) = bits m / 8 + 4 ⌈m / 256⌉:

    reduce_scatter  (p-1) B(n/p)      all_gather  (p-1) B(n/p)      all_reduce  2 (p-1) B(n/p)

ZeRO++, Wang et al. 2023, arXiv 2306.10209 (qgZ, qwZ); 1-bit Adam, Tang et al. 2021, arXiv
2102.02888 (the two roundings, each with error feedback).
"""

from collections.abc import Hashable, Sequence
from itertools import accumulate

import numpy as np

from ...backend import Array, record_allocation
from ...comm import Communicator
from ...comm.collectives import all_gather, all_to_all, chunk_bounds
from ...parallel.wire import Wire
from .block_codec import INT8, BlockCodec
from .error_feedback import ErrorFeedback


class QuantizedWire(Wire):
    """Messages of `codec`; one for each rank and strategy.

    With `feedback` what rounding loses of a gradient is sent in the next step.  That takes as much
    memory as the gradients (for sharded ones (p-1)/p of it), and is not kept in checkpoints: a run
    that is resumed begins with nothing residual.
    """

    def __init__(self, codec: BlockCodec = INT8, feedback: bool = True):
        self.codec = codec
        self.feedback_state = ErrorFeedback() if feedback else None

    def start_batch(self, scale: float) -> None:
        """See Wire."""
        if self.feedback_state is not None:
            self.feedback_state.scale = scale

    def _message(self, numbers: Array, key: Hashable, piece: int) -> Array:
        if self.feedback_state is None or key is None:
            return self.codec.encode(numbers)
        return self.feedback_state.message((key, piece), numbers, self.codec)

    def reduce_scatter(self, comm: Communicator, flat: Array, counts: Sequence[int],
                       key: Hashable = None) -> Array:
        """See Wire: rank r is sent all pieces number r as codes, and adds its own."""
        p, r, stops = comm.size, comm.rank, list(accumulate(counts))
        pieces = [flat[stop - n:stop] for n, stop in zip(counts, stops)]
        if p == 1:
            return pieces[0]
        sizes = [self.codec.num_bytes(n) for n in counts]
        table = [[0 if d == s else sizes[d] for d in range(p)] for s in range(p)]
        outgoing = np.concatenate([self._message(pieces[d], key, d) for d in range(p) if d != r])
        record_allocation("communication", outgoing)
        arrived = all_to_all(comm, outgoing, algorithm="pairwise",
                             counts=table)
        for message in record_allocation("communication", arrived).reshape(p - 1, sizes[r]):
            pieces[r] += self.codec.decode(message, counts[r])
        return pieces[r]

    def all_reduce(self, comm: Communicator, flat: Array, key: Hashable = None) -> Array:
        """See Wire: a reduce-scatter, and an all-gather of the sums' codes."""
        if comm.size > 1:
            counts = [stop - start for start, stop in chunk_bounds(flat.shape[0], comm.size)]
            mine = self.reduce_scatter(comm, flat, counts, key)
            self._gather(comm, self._message(mine, key, comm.rank), counts, flat)
        return flat

    def all_gather(self, comm: Communicator, piece: Array, counts: Sequence[int],
                   out: Array) -> Array:
        """See Wire: all pieces are rounded, this rank's too.  Nothing is residual: it is no sum."""
        if comm.size == 1:
            out[...] = piece
            return out
        return self._gather(comm, self.codec.encode(piece), counts, out)

    def _gather(self, comm: Communicator, message: Array, counts: Sequence[int],
                out: Array) -> Array:
        sizes = [self.codec.num_bytes(n) for n in counts]
        messages = record_allocation("communication",
                             all_gather(comm, message, algorithm="ring", counts=sizes))
        for n, size, stop, end in zip(counts, sizes, accumulate(counts), accumulate(sizes)):
            out[stop - n:stop] = self.codec.decode(messages[end - size:end], n)
        return out
