"""The exact cost of each algorithm, from the messages of each round.

Derived from the pictures in the collectives' docstrings, not from their code.  Each prediction is a
list of rounds (times combined, [(source, dest, elements), …]); `critical` adds them up.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from . import schedules
from .model import Cost, Round, critical


def predict(operation: str, algorithm: str, p: int, n: int, itemsize: int = 8,
            counts: Sequence | None = None, num_segments: int | None = None,
            ranks_per_node: int | None = None, block_bytes: int = BLOCK_BYTES) -> Cost:
    """The exact cost of `operation` by `algorithm` on `p` ranks.

    `n` is the number of elements of the *whole* vector: what each rank gives (all_reduce, reduce,
    reduce_scatter, scan, all_to_all), what one rank gives (broadcast, scatter), what each gets
    (all_gather), what one gets (gather).  `counts` are the lengths of its pieces (all_to_all: a
    table of rows, from whom to whom); otherwise n is cut as by np.array_split.  `num_segments` is
    for a pipelined chain, `ranks_per_node` for hierarchical and torus, `block_bytes` for a blocked
    ring.  Counts are for root 0; without `counts` they hold for any.  Raises ValueError for an
    unknown operation or algorithm.
    """
    node_sizes = schedules.fill(p, ranks_per_node or max(p, 1))
    return critical(rounds_of(operation, algorithm, p, n, itemsize, counts, num_segments,
                              node_sizes, block_bytes), p, itemsize)


def rounds_of(operation: str, algorithm: str, p: int, n: int, itemsize: int = 8,
              counts: Sequence | None = None, num_segments: int | None = None,
              node_sizes: Sequence[int] | None = None,
              block_bytes: int = BLOCK_BYTES) -> Iterable[Round]:
    """The messages of each round, for the arguments of `predict`.

    `node_sizes` are the numbers of consecutive ranks that share a node, for hierarchical
    and torus.
    """
    if p < 1 or n < 0:
        raise ValueError(f"p={p}, n={n}: give at least 1 rank and no negative length")
    pieces = schedules.cut(n, p) if counts is None or operation == "all_to_all" else list(counts)
    known = {
        ("barrier", "dissemination"): lambda: schedules.dissemination(p),
        ("barrier", "tree"): lambda: chain(
            schedules.dealt_back([0] * p), schedules.deal([0] * p)),
        ("broadcast", "binomial"): lambda: schedules.spread(p, n),
        ("broadcast", "chain"): lambda: schedules.pipeline(p, [n]),
        ("broadcast", "pipelined_chain"): lambda: schedules.pipeline(
            p, segments(p, n, itemsize, num_segments)),
        ("broadcast", "scatter_all_gather"): lambda: chain(
            schedules.deal(pieces), schedules.ring(pieces, 0, 0)),
        ("scatter", "linear"): lambda: schedules.from_first(pieces),
        ("scatter", "binomial"): lambda: schedules.deal(pieces),
        ("gather", "linear"): lambda: schedules.to_first(pieces),
        ("gather", "binomial"): lambda: schedules.dealt_back(pieces),
        ("reduce", "binomial"): lambda: schedules.collect(p, n),
        ("reduce", "rabenseifner"): lambda: schedules.folded(
            p, n, schedules.halving, schedules.dealt_back, give_back=False),
        ("all_gather", "ring"): lambda: schedules.ring(pieces, 0, 0),
        ("all_gather", "recursive_doubling"): lambda: schedules.folded_gather(pieces),
        ("all_gather", "bruck"): lambda: schedules.bruck_gather(pieces),
        ("reduce_scatter", "ring"): lambda: schedules.ring(pieces, -1, 1),
        ("reduce_scatter", "pairwise"): lambda: schedules.exchange([pieces] * p, 1),
        ("reduce_scatter", "recursive_halving"): lambda: schedules.folded_scatter(pieces),
        ("all_reduce", "ring"): lambda: blocked_ring(p, n, max(1, n)),
        ("all_reduce", "recursive_doubling"): lambda: schedules.folded(
            p, n, lambda parts: schedules.swap_all(len(parts), n)),
        ("all_reduce", "blocked_ring"): lambda: blocked_ring(p, n, max(1, block_bytes // itemsize)),
        ("all_reduce", "rabenseifner"): lambda: rabenseifner(p, n),
        ("all_reduce", "tree"): lambda: chain(
            schedules.collect(p, n), schedules.spread(p, n)),
        ("all_reduce", "hierarchical"): lambda: hierarchical(node_sizes or [p], n),
        ("all_reduce", "torus"): lambda: torus(node_sizes or [p], n),
        ("all_to_all", "pairwise"): lambda: schedules.exchange(table(p, n, counts)),
        ("all_to_all", "bruck"): lambda: schedules.bruck_exchange(table(p, n, counts)),
        ("scan", "linear"): lambda: ((1, [(r, r + 1, n)]) for r in range(p - 1)),
        ("scan", "recursive_doubling"): lambda: schedules.shifts(p, n, 1, 1),
        ("exscan", "linear"): lambda: ((int(r < p - 2), [(r, r + 1, n)]) for r in range(p - 1)),
        ("exscan", "recursive_doubling"): lambda: schedules.shifts(p, n, 1, 2),
    }
    if (operation, algorithm) not in known:
        of_it = [a for o, a in known if o == operation]
        raise ValueError(f"no cost is known of {operation} by {algorithm!r}: choose from "
                         f"{', '.join(of_it or sorted({o for o, _ in known}))}")
    return known[operation, algorithm]()


def segments(p: int, n: int, itemsize: int, num_segments: int | None) -> list[int]:
    """The lengths of a pipelined chain's segments: none empty, unless all is."""
    k = num_segments or best_num_segments(p, n * itemsize)
    return schedules.cut(n, max(1, min(k, n)))


def table(p: int, n: int, counts: Sequence | None) -> list:
    """The lengths from each rank (row) to each (column): n / p, where not given."""
    return [[n // p] * p] * p if counts is None else list(counts)


def blocked_ring(p: int, n: int, length: int) -> Iterator[Round]:
    """The ring on `length` elements, then on the next; on none, if there are none."""
    for start in range(0, max(1, n), length):
        pieces = schedules.cut(min(length, n - start), p)
        yield from schedules.ring(pieces, -1, 1)
        yield from schedules.ring(pieces, 0, 0)


def rabenseifner(p: int, n: int) -> Iterator[Round]:
    """Halving and doubling among the largest power of two."""
    return schedules.folded(p, n, schedules.halving, schedules.doubling)


def hierarchical(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Trees within the nodes, in step with each other; Rabenseifner's between their first ranks."""
    starts = [0, *accumulate(sizes[:-1])]

    def within(rounds_of_node) -> Iterator[Round]:
        """The rounds of all nodes side by side, each node's by its own size."""
        for start, size in zip(starts, sizes):
            for times, transfers in rounds_of_node(size, n):
                yield times, [(start + s, start + d, k) for s, d, k in transfers]

    between = ((times, [(starts[s], starts[d], k) for s, d, k in transfers])
               for times, transfers in rabenseifner(len(starts), n))
    return chain(within(schedules.collect), between, within(schedules.spread))


def torus(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Rings within the nodes, side by side; rings between them, one for each piece; rings within.
    """
    starts, width = [0, *accumulate(sizes[:-1])], min(sizes)
    pieces = schedules.cut(n, width)

    def within(first: int, times_combined: int) -> Iterator[Round]:
        """The rings of all nodes; ranks of larger nodes have an empty piece."""
        for start, size in zip(starts, sizes):
            of_node = schedules.ring(pieces + [0] * (size - width), first, times_combined)
            yield from schedules.renumber(of_node, range(start, start + size))

    between = (round_ for i, piece in enumerate(pieces) for round_ in schedules.renumber(
        blocked_ring(len(starts), piece, max(1, piece)), [start + i for start in starts]))
    return chain(within(-1, 1), between, within(0, 0))
