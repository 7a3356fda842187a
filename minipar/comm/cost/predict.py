"""The exact cost of each algorithm, from the messages of each round.

Derived from the pictures in the collectives' docstrings, not from their code.  Each prediction is a
list of rounds: how often a rank combines what it receives (0 or 1, …), and the messages, each a
(source, dest, elements).  `critical` adds them up.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from . import rounds
from .alpha_beta import Cost, Round, critical


def predict(operation: str, algorithm: str, p: int, n: int, itemsize: int = 8,
            counts: Sequence | None = None, num_segments: int | None = None,
            ranks_per_node: int | None = None, block_bytes: int = BLOCK_BYTES) -> Cost:
    """The exact cost of `operation` by `algorithm` on `p` ranks.

    `n` is the number of elements of the *whole* vector:

        all_reduce, reduce, reduce_scatter, scan, exscan, all_to_all    each rank gives it
        broadcast, scatter                                              the root gives it
        all_gather                                                      each rank gets it
        gather                                                          the root gets it

    `counts` are the lengths of its pieces, for all_to_all counts[i][j] from rank i to rank j; by
    default n is cut as by np.array_split.  `num_segments` is for a pipelined chain,
    `ranks_per_node` for hierarchical and torus, `block_bytes` for a blocked ring.  The root is rank
    0; without `counts` the cost is the same for any.  Raises ValueError for an unknown operation or
    algorithm.
    """
    node_sizes = rounds.fill(p, ranks_per_node or max(p, 1))
    call = Call(p, n, itemsize, counts, num_segments, node_sizes, block_bytes)
    return critical(rounds_of(operation, algorithm, call), p, itemsize)


class Call(NamedTuple):
    """The arguments of a collective on which its rounds depend, see `predict`.

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
        """The lengths from each rank (row) to each (column): n / p, where not given."""
        return [[self.n // self.p] * self.p] * self.p if self.counts is None else list(self.counts)

    @property
    def segments(self) -> list[int]:
        """The lengths of a pipelined chain's segments: none empty, unless all is."""
        k = self.num_segments or best_num_segments(self.p, self.n * self.itemsize)
        return rounds.cut(self.n, max(1, min(k, self.n)))


def rounds_of(operation: str, algorithm: str, call: Call) -> Iterable[Round]:
    """The messages of each round.  Raises ValueError, as `predict`."""
    if call.p < 1 or call.n < 0:
        raise ValueError(f"p={call.p}, n={call.n}: give at least 1 rank and no negative length")
    if algorithm not in ROUNDS.get(operation, {}):
        raise ValueError(f"no cost is known of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(ROUNDS.get(operation, sorted(ROUNDS)))}")
    return ROUNDS[operation][algorithm](call)


def blocked_ring(p: int, n: int, length: int) -> Iterator[Round]:
    """The ring on `length` elements, then on the next; on none, if there are none."""
    for start in range(0, max(1, n), length):
        pieces = rounds.cut(min(length, n - start), p)
        yield from rounds.ring(pieces, -1, 1)
        yield from rounds.ring(pieces, 0, 0)


def rabenseifner(p: int, n: int) -> Iterator[Round]:
    """Halving and doubling among the largest power of two."""
    return rounds.folded(p, n, rounds.halving, rounds.doubling)


def in_each_node(sizes: Sequence[int],
                 rounds_in_node: Callable[[int], Iterable[Round]]) -> Iterator[Round]:
    """The rounds of all nodes side by side, each node's by its own size."""
    for start, size in zip(starts_of(sizes), sizes):
        yield from rounds.renumber(rounds_in_node(size), range(start, start + size))


def starts_of(sizes: Sequence[int]) -> list[int]:
    """The first rank of each node."""
    return [0, *accumulate(sizes[:-1])]


def hierarchical(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Trees within the nodes, in step with each other; Rabenseifner's between their first ranks."""
    return chain(in_each_node(sizes, lambda size: rounds.collect(size, n)),
                 rounds.renumber(rabenseifner(len(sizes), n), starts_of(sizes)),
                 in_each_node(sizes, lambda size: rounds.spread(size, n)))


def torus(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Rings within the nodes, side by side; rings between them, one for each piece; rings within.

    Ranks of larger nodes have an empty piece.
    """
    width = min(sizes)
    pieces = rounds.cut(n, width)

    def within(first: int, times_combined: int) -> Iterator[Round]:
        return in_each_node(sizes, lambda size: rounds.ring(
            pieces + [0] * (size - width), first, times_combined))

    between = (round_ for i, piece in enumerate(pieces) for round_ in rounds.renumber(
        blocked_ring(len(sizes), piece, max(1, piece)), [start + i for start in starts_of(sizes)]))
    return chain(within(-1, 1), between, within(0, 0))


Rounds = Callable[[Call], Iterable[Round]]

ROUNDS: dict[str, dict[str, Rounds]] = {
    "barrier": {
        "dissemination": lambda c: rounds.dissemination(c.p),
        "tree": lambda c: chain(rounds.dealt_back([0] * c.p), rounds.deal([0] * c.p)),
    },
    "broadcast": {
        "binomial": lambda c: rounds.spread(c.p, c.n),
        "chain": lambda c: rounds.pipeline(c.p, [c.n]),
        "pipelined_chain": lambda c: rounds.pipeline(c.p, c.segments),
        "scatter_all_gather": lambda c: chain(rounds.deal(c.pieces), rounds.ring(c.pieces, 0, 0)),
    },
    "scatter": {
        "linear": lambda c: rounds.from_first(c.pieces),
        "binomial": lambda c: rounds.deal(c.pieces),
    },
    "gather": {
        "linear": lambda c: rounds.to_first(c.pieces),
        "binomial": lambda c: rounds.dealt_back(c.pieces),
    },
    "reduce": {
        "binomial": lambda c: rounds.collect(c.p, c.n),
        "rabenseifner": lambda c: rounds.folded(
            c.p, c.n, rounds.halving, rounds.dealt_back, give_back=False),
    },
    "all_gather": {
        "ring": lambda c: rounds.ring(c.pieces, 0, 0),
        "recursive_doubling": lambda c: rounds.folded_gather(c.pieces),
        "bruck": lambda c: rounds.bruck_gather(c.pieces),
    },
    "reduce_scatter": {
        "ring": lambda c: rounds.ring(c.pieces, -1, 1),
        "pairwise": lambda c: rounds.exchange([c.pieces] * c.p, 1),
        "recursive_halving": lambda c: rounds.folded_scatter(c.pieces),
    },
    "all_reduce": {
        "ring": lambda c: blocked_ring(c.p, c.n, max(1, c.n)),
        "recursive_doubling":
            lambda c: rounds.folded(c.p, c.n, lambda parts: rounds.swap_all(len(parts), c.n)),
        "blocked_ring": lambda c: blocked_ring(c.p, c.n, max(1, c.block_bytes // c.itemsize)),
        "rabenseifner": lambda c: rabenseifner(c.p, c.n),
        "tree": lambda c: chain(rounds.collect(c.p, c.n), rounds.spread(c.p, c.n)),
        "hierarchical": lambda c: hierarchical(c.node_sizes, c.n),
        "torus": lambda c: torus(c.node_sizes, c.n),
    },
    "all_to_all": {
        "pairwise": lambda c: rounds.exchange(c.table),
        "bruck": lambda c: rounds.bruck_exchange(c.table),
    },
    "scan": {
        "linear": lambda c: ((1, [(r, r + 1, c.n)]) for r in range(c.p - 1)),
        "recursive_doubling": lambda c: rounds.shifts(c.p, c.n, 1, 1),
    },
    "exscan": {
        "linear": lambda c: ((int(r < c.p - 2), [(r, r + 1, c.n)]) for r in range(c.p - 1)),
        "recursive_doubling": lambda c: rounds.shifts(c.p, c.n, 1, 2),
    },
}
