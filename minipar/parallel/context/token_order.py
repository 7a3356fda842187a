"""The tokens of each rank: contiguous, zig-zag or striped.

    16 tokens on 4 ranks         hop 0 1 2 3 of a causal ring: pairs of a query and a key it sees
    contiguous   0000111122223333        rank 0  10  0  0  0       the last rank computes
                                         rank 3  10 16 16 16       near (2p-1)/p of the mean
    zig-zag      0011223333221100        rank 0  10  8  8  8       every rank the same
                                         rank 3  10  8  8  8
    striped      0123012301230123        rank 0  10  6  6  6       nearly the same, but every
                                         rank 3  10 10 10 10       block is half masked

In zig-zag order the sequence is cut into 2p pieces, and rank r has pieces r and 2p-1-r.  Queries of
the early piece see few keys, and queries of the late piece see many.  `chunk_bounds` cuts the
pieces, also of lengths that do not divide.  On every rank positions rise.

Zig-zag: Zhu's ring-flash-attention and Llama 3 (Dubey et al. 2024, section 3.3.2); striped: Brandon
et al. 2023 (arXiv 2311.09431).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ...comm.collectives import chunk_bounds


def contiguous(length: int, num_ranks: int) -> list[np.ndarray]:
    """The positions of each rank: one piece of the sequence."""
    return [np.arange(start, stop) for start, stop in chunk_bounds(length, num_ranks)]


def zigzag(length: int, num_ranks: int) -> list[np.ndarray]:
    """The positions of each rank r: pieces r and 2p-1-r of 2p, in rising order."""
    pieces = [np.arange(start, stop) for start, stop in chunk_bounds(length, 2 * num_ranks)]
    return [np.concatenate([pieces[r], pieces[2 * num_ranks - 1 - r]]) for r in range(num_ranks)]


def striped(length: int, num_ranks: int) -> list[np.ndarray]:
    """The positions of each rank: every p-th one."""
    return [np.arange(rank, length, num_ranks) for rank in range(num_ranks)]


ORDERS: dict[str, Callable[[int, int], list[np.ndarray]]] = {
    "zigzag": zigzag, "contiguous": contiguous, "striped": striped}


def positions_of_ranks(order: str, length: int, num_ranks: int) -> list[np.ndarray]:
    """The positions that each rank has of a sequence of `length` tokens.

    Raises ValueError for an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"unknown order of tokens {order!r}: choose from {', '.join(ORDERS)}")
    return ORDERS[order](length, num_ranks)


def sorting(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The index that brings the tokens of several ranks, one after the other, into rising order."""
    return np.argsort(np.concatenate(parts), kind="stable")
