"""1-bit SGD: one bit a number, and two means for each column of a matrix.

    c = g + e          column j: m⁺ⱼ = mean of its c ≥ 0,  m⁻ⱼ = mean of the others
    send the signs, m⁺ and m⁻                e = c - (m⁺ⱼ where c ≥ 0, else m⁻ⱼ)

This was the first method of one bit with which a model trained as well as with whole gradients,
thanks to the error feedback e.  A column belongs to one output, whose gradients have a size of
their own.  A vector is one column.  A rank sends its codes to all others: (p-1) (nm/8 + 2mb) bytes
for an n × m matrix with b bytes a number.  Sums are not rounded.  Seide, Fu, Droppo, Li & Yu 2014.
"""

import numpy as np

from ....backend import Array
from ....comm import Communicator
from ....comm.collectives import all_gather
from .tensor_wire import Tensors, TensorWire, joined, parted, size_of


class OneBitSGD(TensorWire):
    """Sends signs, and the means of positive and negative numbers of each column."""

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        matrices = {name: (g + self.remembered(f"{name}/error", g)).reshape(size_of(g.shape))
                    for name, g in tensors.items()}
        means = {name: column_means(matrix) for name, matrix in matrices.items()}
        numbers, num_bits = joined(matrices), -(-joined(matrices).shape[0] // 8)

        def decode(message: Array) -> Array:
            signs = np.unpackbits(message[:num_bits])[:numbers.shape[0]] > 0
            told = parted(message[num_bits:].copy().view(numbers.dtype), means)
            return joined({name: np.where(plus, *told[name])
                           for name, plus in parted(signs, matrices).items()})

        message = np.concatenate([np.packbits(numbers >= 0), joined(means).view(np.uint8)])
        messages = all_gather(comm, message).reshape(comm.size, message.shape[0])
        left = parted(numbers - decode(message), tensors)
        return (parted(sum(map(decode, messages)), tensors),
                {f"{name}/error": array for name, array in left.items()})


def column_means(matrix: Array) -> Array:
    """The mean of the numbers ≥ 0 of each column of a matrix (n, m), and of the others: (2, m)."""
    found = []
    for chosen in (matrix >= 0, ~(matrix >= 0)):
        count = np.maximum(np.sum(chosen, axis=0), 1)
        found.append(np.sum(np.where(chosen, matrix, 0), axis=0) / count)
    return np.stack(found).astype(matrix.dtype)
