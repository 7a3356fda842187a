"""Distributed top-k: find the k smallest numbers over all ranks, exactly, without collecting them.

    round 1   every rank counts its keys by their first byte     Σ over ranks ─▶ 256 counts
              the k-th smallest starts with the byte at which the running sum reaches k
    round 2   … by their second byte, among those that start so  Σ over ranks ─▶ 256 counts

After one round for each byte of a key, all ranks know the k-th smallest key.  This is a radix sort
that follows only one bucket.  Each round is an all-reduce of 256 · 8 bytes, for any number of keys.

Nonnegative floats sort like the integers with the same bits.  Among equal scores, those at the
first positions win; more such rounds find the last position that wins.
"""

from typing import NamedTuple

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_reduce

BINS = 256


class KthSmallest(NamedTuple):
    """The k-th smallest key over all ranks, and the numbers of smaller and of equal keys."""

    key: int
    num_smaller: int
    num_equal: int


def sortable_keys(scores: np.ndarray) -> np.ndarray:
    """Unsigned integers in the order of `scores`, which must be ≥ 0; the key 0 stays unused.

    Raises ValueError for negative scores and NaN.
    """
    if not np.all(scores >= 0):
        raise ValueError("scores must be at least 0, but some are negative or NaN: prune a model "
                         "whose training went well")
    bits = np.ascontiguousarray(scores).view(f"u{scores.dtype.itemsize}")
    return bits + bits.dtype.type(1)


def total(comm: Communicator | None, counts: np.ndarray) -> np.ndarray:
    """The sum of `counts` over the ranks of `comm`; `counts` itself without `comm`."""
    if comm is None or comm.size == 1:
        return counts
    with comm.labelled("masks"):
        return all_reduce(comm, counts)


def kth_smallest(keys: np.ndarray, k: int, num_bytes: int,
                 comm: Communicator | None = None) -> KthSmallest:
    """The k-th smallest (from 1) of all ranks' keys, unsigned integers of `num_bytes` bytes.

    Collective: all ranks of `comm` call it with their keys (n,), at least k in all.
    """
    key = num_smaller = num_equal = 0
    for shift in range(8 * (num_bytes - 1), -1, -8):
        digits = (keys >> keys.dtype.type(shift)) & keys.dtype.type(BINS - 1)
        here = np.bincount(digits.astype(np.intp), minlength=BINS)
        counts = total(comm, here.astype(np.int64))
        up_to = num_smaller + np.cumsum(counts)
        digit = int(np.searchsorted(up_to, k))
        num_equal = int(counts[digit])
        num_smaller = int(up_to[digit]) - num_equal
        key = key << 8 | digit
        keys = keys[digits == digit]
    return KthSmallest(key, num_smaller, num_equal)


def mark_k_smallest(keys: np.ndarray, places: np.ndarray, k: int, num_places: int,
                    comm: Communicator | None = None,
                    counted: np.ndarray | bool = True) -> np.ndarray:
    """Mark this rank's keys (n,) that are among the k smallest of all ranks: (n,) bool.

    `places` (n,) are distinct numbers below `num_places`; among equal keys the lowest places win.
    If several ranks have copies of a key, it is `counted` on only one of them.
    """
    if k == 0:
        return np.zeros(keys.shape, bool)
    counted = np.broadcast_to(counted, keys.shape)
    kth = kth_smallest(keys[counted], k, keys.dtype.itemsize, comm)
    taken, equal = keys < kth.key, keys == kth.key
    wanted = k - kth.num_smaller
    if wanted < kth.num_equal:
        num_bytes = max(1, -(-int(num_places - 1).bit_length() // 8))
        last = kth_smallest(places[equal & counted].astype(np.uint64), wanted, num_bytes, comm).key
        equal &= places <= last
    return taken | equal
