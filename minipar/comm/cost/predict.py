"""The exact cost of each algorithm, from the messages of each round.

Each prediction is a list of rounds: how often a rank combines what it receives (0, 1 or 2 times),
and the messages, each a (source, dest, elements).  The algorithm's entry in `comm/algorithms.py`
gives them, and `critical` adds them up.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import rounds
from ..algorithms import known
from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from .alpha_beta import Cost, critical


def predict(operation: str, algorithm: str, p: int, n: int, itemsize: int = 8,
            counts: Sequence | None = None, num_segments: int | None = None,
            ranks_per_node: int | None = None, block_bytes: int = BLOCK_BYTES) -> Cost:
    """The exact cost of `operation` by `algorithm` on `p` ranks.

    `n` is the number of elements of the *whole* vector:

        all_reduce, reduce, reduce_scatter, scan, exscan, all_to_all    each rank gives it
        broadcast, scatter                                              the root gives it
        all_gather                                                      each rank gets it
        gather                                                          the root gets it

    `counts` are the lengths of its pieces; for all_to_all, counts[i][j] goes from rank i to rank j.
    By default n is cut as by np.array_split, and for all_to_all into pieces of n // p.
    `num_segments` is for a pipelined chain, `ranks_per_node` for hierarchical and torus,
    `block_bytes` for a blocked ring.  The root is rank 0.  Raises ValueError for an unknown
    operation or algorithm, and for one whose entry gives no rounds.
    """
    node_sizes = rounds.fill(p, ranks_per_node or max(p, 1))
    call = Call(p, n, itemsize, counts, num_segments, node_sizes, block_bytes)
    return critical(rounds_of(operation, algorithm, call), p, itemsize)


class Call(NamedTuple):
    """The arguments of a collective that determine its rounds; see `predict`.

    `node_sizes` are the numbers of consecutive ranks that share a node, for hierarchical and torus.
    """

    p: int
    n: int                          # elements of the whole vector
    itemsize: int = 8
    counts: Sequence | None = None
    num_segments: int | None = None
    node_sizes: Sequence[int] = ()
    block_bytes: int = BLOCK_BYTES

    @property
    def pieces(self) -> list[int]:
        """The lengths of one piece for each rank."""
        return rounds.cut(self.n, self.p) if self.counts is None else list(self.counts)

    @property
    def table(self) -> list:
        """The lengths from each rank (row) to each (column): by default n // p."""
        return [[self.n // self.p] * self.p] * self.p if self.counts is None else list(self.counts)

    @property
    def segments(self) -> list[int]:
        """The lengths of a pipelined chain's segments: none is empty, unless n = 0."""
        k = self.num_segments or best_num_segments(self.p, self.n * self.itemsize)
        return rounds.cut(self.n, max(1, min(k, self.n)))


def rounds_of(operation: str, algorithm: str, call: Call) -> Iterable[rounds.Round]:
    """The messages of each round.  Raises ValueError, as `predict` does."""
    if call.p < 1 or call.n < 0:
        raise ValueError(f"p={call.p}, n={call.n}: give at least 1 rank and no negative length")
    return known(operation, algorithm, "rounds")(call)
