"""Collectives whose messages are small integers with one scale per block.

    all_reduce     my pieces ──codes──▶ their owners      all_to_all:  (p-1)/p of all codes
                   owner: decode all, sum in float32
                   the sum ──codes──▶ all ranks           all_gather:  (p-1)/p of all codes

    make_strategy("ddp", model, comm, wire=QuantizedWire())

In an all-reduce a number is rounded twice, whatever p is: by the rank that sends it, and once more
as part of the sum.  A ring that passed on partial sums as codes would round p - 1 times, with
coarser steps each time because the sums grow.  The error relative to the sum would grow with p.
All ranks, the owner of a piece included, decode the same codes of the sum, so replicas stay bitwise
equal.  Data that a rank does not send is not rounded; with one rank nothing is.

Bytes that a rank sends for n numbers, if p divides n and B(m) = ⌈bits m / 8⌉ + 4 ⌈m / 256⌉:

    reduce_scatter  (p-1) B(n/p)      all_gather  (p-1) B(n/p)      all_reduce  2 (p-1) B(n/p)

ZeRO++, Wang et al. 2023, arXiv 2306.10209 (qgZ, qwZ); 1-bit Adam, Tang et al. 2021, arXiv
2102.02888 (the two roundings, each with error feedback).
"""

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from itertools import accumulate

import numpy as np

from ....backend import Array, record_allocation
from ....comm import Communicator
from ....comm.collectives import all_gather, all_to_all, chunk_bounds
from ..wire import Wire, key_name
from .block_codec import INT8, BlockCodec
from .error_feedback import ErrorFeedback


class QuantizedWire(Wire):
    """A wire that sends gradients and parameters as messages of `codec`.

    Each rank makes one wire for each strategy.  With `feedback`, the rounding error of a gradient,
    its residual, is sent in the next step.  The residuals take as much memory as the gradients (for
    gradients that are reduce-scattered, (p-1)/p of it), and are in checkpoints.
    """

    verb = "sent as"
    key: Hashable = None        # names the array that is sent (see `of`); None: without feedback

    def __init__(self, codec: BlockCodec = INT8, feedback: bool = True):
        self.codec = codec
        self.feedback = ErrorFeedback() if feedback else None

    def of(self, key: Hashable) -> "QuantizedWire":
        """The same wire for one array; `key` names the array in every step."""
        wire = copy(self)
        wire.key = key
        return wire

    def start_batch(self, scale: float) -> None:
        if self.feedback is not None:
            self.feedback.scale = scale

    def state_dict(self) -> dict[str, Array]:
        return {} if self.feedback is None else {
            f"residual/{key}": array for key, array in self.feedback.residuals.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in state.items():
            if self.feedback is not None and name.startswith("residual/"):
                self.feedback.residuals[name.removeprefix("residual/")] = array.copy()

    def _message(self, numbers: Array, piece: int) -> Array:
        if self.feedback is None or self.key is None:
            return self.codec.encode(numbers)
        return self.feedback.message(key_name((self.key, piece)), numbers, self.codec)

    def reduce_scatter(self, comm: Communicator, flat: Array, *, counts: Sequence[int],
                       in_place: bool = True) -> Array:
        """Send piece d to rank d as codes; add the decoded pieces of the others to this rank's."""
        p, r, stops = comm.size, comm.rank, list(accumulate(counts))
        pieces = [flat[stop - n:stop] for n, stop in zip(counts, stops)]
        if p == 1:
            return pieces[0]
        sizes = [self.codec.num_bytes(n) for n in counts]
        table = [[0 if d == s else sizes[d] for d in range(p)] for s in range(p)]
        outgoing = np.concatenate([self._message(pieces[d], d) for d in range(p) if d != r])
        record_allocation("communication", outgoing)
        arrived = all_to_all(comm, outgoing, algorithm="pairwise", counts=table)
        for message in record_allocation("communication", arrived).reshape(p - 1, sizes[r]):
            pieces[r] += self.codec.decode(message, counts[r])
        return pieces[r]

    def all_reduce(self, comm: Communicator, flat: Array, *, out: Array) -> Array:
        """A reduce-scatter of `flat` in place, then an all-gather of the codes of the sums."""
        if comm.size == 1:
            return self.all_gather(comm, flat, counts=(), out=out)
        counts = [stop - start for start, stop in chunk_bounds(flat.shape[0], comm.size)]
        mine = self.reduce_scatter(comm, flat, counts=counts)
        return self._gather(comm, self._message(mine, comm.rank), counts, out)

    def all_gather(self, comm: Communicator, piece: Array, *, counts: Sequence[int],
                   out: Array) -> Array:
        """Gather all pieces as codes; this rank's own piece is rounded too, without feedback."""
        if comm.size == 1:
            out[...] = piece
            return out
        return self._gather(comm, self.codec.encode(piece), counts, out)

    def _gather(self, comm: Communicator, message: Array, counts: Sequence[int],
                out: Array) -> Array:
        sizes = [self.codec.num_bytes(n) for n in counts]
        messages = all_gather(comm, message, algorithm="ring", counts=sizes)
        record_allocation("communication", messages)
        for n, size, stop, end in zip(counts, sizes, accumulate(counts), accumulate(sizes)):
            out[stop - n:stop] = self.codec.decode(messages[end - size:end], n)
        return out
