"""Formulas: the messages and the FLOPs of context parallelism.

    b samples of t tokens over p ranks, h heads of queries and kv of keys, of width n each
    elements that a rank sends

    ring, all-gather     forward 2 (p-1) b t/p kv n             backward twice as many
    Ulysses              (p-1)/p b t/p (2h + 2kv) n             the same in backward   (kv ≥ p)

    pairs of a query and a key that it sees, on a rank, for each head, t = 2pc
    in hop i of the ring, rank r has the keys of rank r - i

    zig-zag       hop 0: c(2c+1)      every other hop: 2c²          all ranks alike
    contiguous    hop 0: c(2c+1)      hop i: 4c² on ranks ≥ i, 0 on the others

    max / mean    zig-zag 1      contiguous near (2p-1)/p: the last rank has p - 1/2 of p²/2 blocks

A computed pair costs two products of width n in forward, 4n FLOPs.  It costs five in backward, 10n,
since the probabilities are computed again.  Its softmax takes 4 FLOPs more in each.  Lengths may be
uneven: `parallel/context/token_order.py` says how long the pieces are.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .activations import visible_pairs
from .data_parallel import all_gather_elements, chunk_lengths, reduce_scatter_elements

Positions = Sequence[np.ndarray]        # for each rank, the positions of its tokens


def ring_elements(lengths: Sequence[int], row: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements that each rank sends in forward and in backward: (p,) each.

    `lengths` are the numbers of tokens of the ranks.  `row` is the number of elements of the keys
    and values at one position, 2 b kv n.  Attention by an all-gather of keys sends as much.
    """
    gathered = all_gather_elements(lengths) * row
    return gathered, gathered + reduce_scatter_elements(lengths) * row


def ulysses_elements(lengths: Sequence[int], batch: int, heads: int, kv_heads: int,
                     n: int) -> np.ndarray:
    """Elements that each rank sends in forward, and again in backward if lengths are equal: (p,).

    A rank sends q, k and v of its tokens to the ranks with the other heads.  It sends the results
    of its heads to the ranks with the other tokens.
    """
    p, own = len(lengths), np.array(lengths)
    of_qkv = (heads + 2 * max(kv_heads, p)) * n // p
    return batch * (own * (p - 1) * of_qkv + (sum(lengths) - own) * heads * n // p)


def pairs_by_hop(positions: Positions) -> np.ndarray:
    """Causally visible pairs [r, i] of a query of rank r and a key of rank r - i (mod p): (p, p).
    """
    p = len(positions)
    return np.array([[sum(int(np.sum(positions[(r - i) % p] <= query)) for query in positions[r])
                      for i in range(p)] for r in range(p)])


def imbalance(work: np.ndarray) -> float:
    """The largest work of a rank divided by the mean; work[r, i] is that of rank r in hop i."""
    of_ranks = work.sum(axis=1)
    return float(of_ranks.max() / of_ranks.mean())


def computed_pairs(order: str, length: int, p: int) -> np.ndarray:
    """Pairs [r, i] that rank r computes in hop i, for `order` "zigzag" or "contiguous": (p, p).

    They are more than the visible ones: a block of queries at the diagonal is computed with all
    keys that its last query sees.
    """
    runs = runs_of_ranks(order, length, p)
    return np.array([[sum(_pairs(query, key) for query in runs[r] for key in runs[(r - i) % p])
                      for i in range(p)] for r in range(p)])


def runs_of_ranks(order: str, length: int, p: int) -> list[list[tuple[int, int]]]:
    """For each rank, the runs (start, stop) of consecutive positions that it has."""
    ends = np.cumsum([0, *chunk_lengths(length, p if order == "contiguous" else 2 * p)]).tolist()
    pieces = list(pairwise(ends))
    if order == "contiguous":
        return [[piece] for piece in pieces]
    joined = (ends[p - 1], ends[p + 1])             # the last rank's pieces are neighbours
    return [[pieces[r], pieces[2 * p - 1 - r]] for r in range(p - 1)] + [[joined]]


def _pairs(query: tuple[int, int], key: tuple[int, int]) -> int:
    """Pairs computed for a run (start, stop) of queries and one of keys, which are equal or apart.
    """
    size = query[1] - query[0]
    if query == key:
        return visible_pairs(size)
    return size * (key[1] - key[0]) if key < query else 0


def product_flops(pairs: int, batch: int, heads: int, n: int) -> tuple[int, int]:
    """(forward, backward) FLOPs of attention's products, for `pairs` computed pairs of each head.
    """
    return 4 * n * batch * heads * pairs, 10 * n * batch * heads * pairs
