"""TernGrad: each number becomes -s, 0 or s at random, so that its mean is right.

    g ← g clipped at ± 2.5 σ      s = max |g| over all ranks, for each tensor
    send sign(g) with probability |g| / s, else 0                       E[s · code] = g

The codes of a clipped gradient are unbiased, so they need no error feedback, and no state is kept.
Their variance, s |g| - g², grows with s: clipping to 2.5 standard deviations keeps s small.  Each
rank sends its codes, 2 bits a number, to all others: (p-1) n/4 bytes for n numbers, beside one
scale for each tensor.  Wen et al. 2017, arXiv 1705.07878.
"""

import numpy as np

from ....backend import Array, to_device_of
from ....comm import Communicator
from ....comm.collectives import all_gather, all_reduce
from ....number_formats.packing import pack, unpack
from ....random import generator
from .tensor_wire import Tensors, TensorWire, joined, parted

CLIP = 2.5          # standard deviations


class TernGrad(TensorWire):
    """Sends codes -1, 0 and 1, drawn by each rank for itself."""

    def draw(self, name: str, step: int, rank: int, like: Array) -> Array:
        """Uniform numbers in [0, 1), in the shape of `like`."""
        random = generator(0, "TernGrad", name, step, rank).random(like.shape)
        return to_device_of(random.astype(like.dtype), like)

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        scales = []
        for name, g in tensors.items():
            limit = CLIP * np.std(g)
            tensors[name] = np.clip(g, -limit, limit)
            scales.append(np.max(np.abs(tensors[name])).reshape(1))
        largest = all_reduce(comm, np.concatenate(scales), op="max")
        scale = parted(np.repeat(largest, [g.size for g in tensors.values()]), tensors)
        codes = {name: np.sign(g) * (self.draw(name, step, comm.rank, g) * scale[name] < np.abs(g))
                 for name, g in tensors.items()}
        message, like = encode(joined(codes)), joined(scale)
        messages = all_gather(comm, message).reshape(comm.size, message.shape[0])
        total = sum(decode(each, like.shape[0], like) for each in messages)
        return parted(total * like, tensors), {}


def encode(codes: Array) -> Array:
    """The message (uint8) of numbers -1, 0 and 1 (n,): two bits each."""
    return pack(codes.astype(np.int8).view(np.uint8), 2)


def decode(message: Array, num_codes: int, like: Array) -> Array:
    """The numbers -1, 0 and 1 (n,) of a message, of the dtype of `like`."""
    codes = unpack(message, 2, num_codes).astype(like.dtype)
    return np.where(codes == 3, -1, codes)
