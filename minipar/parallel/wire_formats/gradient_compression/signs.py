"""Signs with error feedback: one bit a number.

    c = g + e                 s = ‖c‖ / √n          send the sign of each number (0 is +), and s
    e = c - s · sign(c)                             the error is added to the next gradient

    my pieces ──signs, s──▶ their owners, who add up, and do the same with an error of their own
    the sum   ──signs, s──▶ all ranks

A rank sends 2(p-1)/p · n/8 bytes and 2(p-1) scales for n numbers.  Nothing of a gradient is lost;
the errors come later.  Over the steps, Σ sums = Σ gradients - the last errors of ranks and owners.

Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847; two roundings: Tang et al. 2021, arXiv
2102.02888.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ....backend import Array
from ....comm import Communicator
from ....comm.collectives import all_gather, all_to_all, chunk_bounds
from .tensor_wire import Tensors, TensorWire, joined, parted


class Signs(TensorWire):
    """Sums the signs of gradients, with error feedback on both ways."""

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        return self.sum_signs(comm, tensors)

    def sum_signs(self, comm: Communicator, tensors: Tensors) -> tuple[Tensors, Tensors]:
        """(the sums over the ranks, rounded twice to one bit; the new errors).  Collective."""
        first, p, r = next(iter(tensors)), comm.size, comm.rank
        errors = {name: self.remembered(f"{name}/error", a) for name, a in tensors.items()}
        numbers = joined(tensors) + joined(errors)
        bounds, scale = chunk_bounds(numbers.shape[0], p), root_mean_square(numbers)
        counts = [stop - start for start, stop in bounds]
        arrived = to_owners(comm, [encode(numbers[start:stop], scale) for start, stop in bounds])
        mine = sum(decode(message, counts[r], numbers) for message in arrived)
        mine += self.remembered(f"{first}/owner_error", mine)
        message = encode(mine, root_mean_square(mine))
        sizes = [encoded_size(n, numbers.dtype.itemsize) for n in counts]
        gathered = np.split(all_gather(comm, message, algorithm="ring", counts=sizes),
                            [*accumulate(sizes)][:-1])
        total = np.concatenate([decode(m, n, numbers) for m, n in zip(gathered, counts)])
        rest = numbers - scale * np.where(numbers >= 0, 1, -1).astype(numbers.dtype)
        kept = {f"{name}/error": array for name, array in parted(rest, tensors).items()}
        kept[f"{first}/owner_error"] = mine - decode(message, counts[r], numbers)
        return parted(total, tensors), kept


def root_mean_square(numbers: Array) -> Array:
    """‖c‖ / √n, of the dtype of `numbers`; 0 for none."""
    return np.sqrt(np.sum(numbers * numbers) / max(1, numbers.shape[0])).astype(numbers.dtype)


def encoded_size(num_numbers: int, itemsize: int) -> int:
    """The bytes of a message: a bit for each number, and a scale."""
    return -(-num_numbers // 8) + itemsize


def encode(numbers: Array, scale: Array) -> Array:
    """The message (uint8) of signs · scale."""
    return np.concatenate([np.packbits(numbers >= 0), scale.reshape(1).view(np.uint8)])


def decode(message: Array, num_numbers: int, like: Array) -> Array:
    """The numbers (n,) of a message, of the dtype of `like`."""
    num_bits = -(-num_numbers // 8)
    signs = 2 * np.unpackbits(message[:num_bits])[:num_numbers].astype(like.dtype) - 1
    return signs * message[num_bits:].copy().view(like.dtype)


def to_owners(comm: Communicator, messages: Sequence[Array]) -> list[Array]:
    """Send message d to rank d; return what each rank sent here, in rank order.  Collective."""
    p, r, sizes = comm.size, comm.rank, [message.shape[0] for message in messages]
    table = [[0 if d == s else sizes[d] for d in range(p)] for s in range(p)]
    outgoing = np.concatenate([np.zeros(0, np.uint8, like=messages[0]),
                               *(messages[d] for d in range(p) if d != r)])
    arrived = all_to_all(comm, outgoing, algorithm="pairwise", counts=table)
    others = [*arrived.reshape(p - 1, sizes[r])] if p > 1 else []
    return [*others[:r], messages[r], *others[r:]]
