"""Sums of a few numbers of each rank: values and indices of the largest, gathered by all.

    rank 0   values 3 -4   at 1 7  ─┐
                                    ├─ all-gather ─▶ every rank adds up: 0 3 0 2 0 0 0 -4
    rank 1   values 2      at 3    ─┘

A rank sends (p-1) k (b + 4) bytes for k numbers of b bytes.  The ranks choose different indices, so
a sum over p ranks has up to p k numbers.  Such messages cannot be added on their way.
"""

import math

import numpy as np

from ....backend import Array
from ....comm import Communicator
from ....comm.collectives import all_gather

INDEX = np.dtype(np.int32)


def num_sent(size: int, density: float) -> int:
    """⌈density · size⌉, without the rounding error of the product; at least 1."""
    return max(1, math.ceil(round(density * size, 6)))


def largest(values: Array, k: int) -> Array:
    """The indices of the k largest |values| (n,), ascending; of equal values the first.

    NaN counts as infinite, so it is sent.
    """
    size = np.where(np.isnan(values), np.inf, np.abs(values))
    limit = np.partition(size, size.shape[0] - k)[size.shape[0] - k]        # the k-th largest
    [above], [equal] = np.nonzero(size > limit), np.nonzero(size == limit)
    return np.sort(np.concatenate([above, equal[:k - above.shape[0]]]))


def sum_sparse(comm: Communicator, values: Array, indices: Array) -> Array:
    """The sum (n,) of the values that the ranks send: each its `values` (n,) at its `indices` (k,).

    Collective.  Every rank adds in the order of ranks, so all get the same bits.
    """
    k, own = indices.shape[0], values[indices]
    message = np.concatenate([own.view(np.uint8), indices.astype(INDEX).view(np.uint8)])
    total = np.zeros_like(values)
    for arrived in all_gather(comm, message).reshape(comm.size, message.shape[0]):
        numbers, places = np.split(arrived.copy(), [k * values.dtype.itemsize])     # aligned
        total[places.view(INDEX)] += numbers.view(values.dtype)
    return total


def sparse_bytes(sizes: list[int], density: float, num_ranks: int, itemsize: int = 4) -> int:
    """Bytes that a rank sends in the all-gather of the largest numbers of matrices."""
    return (num_ranks - 1) * sum(num_sent(n, density) for n in sizes) * (itemsize + INDEX.itemsize)
