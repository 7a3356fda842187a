"""The rounds of messages of the algorithms; the table in `algorithms.py` refers to them.

A round is (times combined, [(source, dest, number of elements), …]): see `alpha_beta.critical`.
Each iterator yields the rounds of one pattern, such as a ring or a tree; it moves no data.  The
patterns follow the pictures in the collectives' docstrings, not their code.  `p` is the number of
ranks, `n` that of elements, `pieces` the lengths of one piece for each rank.  Ranks count modulo p.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain

Round = tuple[int, list[tuple[int, int, int]]]


def cut(total: int, num_pieces: int) -> list[int]:
    """The lengths of `num_pieces` pieces of `total`: they differ by at most 1, the larger first."""
    return [(total + num_pieces - 1 - i) // num_pieces for i in range(num_pieces)]


def fill(total: int, length: int) -> list[int]:
    """`length` as often as it fits into `total`, then the remainder, if any."""
    return [min(length, total - start) for start in range(0, total, length)]


def dissemination(p: int) -> Iterator[Round]:
    """In round k each rank sends an empty message to the rank 2^k further on."""
    for k in range((p - 1).bit_length()):
        yield 0, [(r, (r + 2**k) % p, 0) for r in range(p)]


def spread(p: int, n: int) -> Iterator[Round]:
    """In each round every rank that has the array sends it to one more, while any lacks it."""
    for k in range((p - 1).bit_length()):
        yield 0, [(r, r + 2**k, n) for r in range(min(2**k, p - 2**k))]


def collect(p: int, n: int) -> Iterator[Round]:
    """In round k the multiples of 2^k pair up; the right one gives, the left one combines."""
    for k in range((p - 1).bit_length()):
        yield 1, [(r + 2**k, r, n) for r in range(0, p - 2**k, 2 ** (k + 1))]


def pipeline(p: int, sizes: list[int]) -> Iterator[Round]:
    """In round t rank r passes segment t - r on to rank r + 1."""
    for t in range(p + len(sizes) - 2 if p > 1 else 0):
        yield 0, [(r, r + 1, sizes[t - r]) for r in range(p - 1) if 0 <= t - r < len(sizes)]


def from_first(pieces: list[int]) -> Iterator[Round]:
    """Rank 0 sends each other rank its piece, one after the other."""
    for r in range(1, len(pieces)):
        yield 0, [(0, r, pieces[r])]


def deal(pieces: list[int]) -> Iterator[Round]:
    """Each multiple r of 2^(k+1) gives rank r + 2^k the pieces of 2^k ranks, for k from high to 0.

    These are the ranks r + 2^k and on, as many as there are.
    """
    p = len(pieces)
    for k in reversed(range((p - 1).bit_length())):
        yield 0, [(r, r + 2**k, sum(pieces[r + 2**k:r + 2 ** (k + 1)]))
                  for r in range(0, p - 2**k, 2 ** (k + 1))]


def to_first(pieces: list[int]) -> Iterator[Round]:
    """Each other rank sends its piece to rank 0, one after the other."""
    return backwards(from_first(pieces))


def dealt_back(pieces: list[int]) -> Iterator[Round]:
    """The rounds of `deal` backwards: pieces join on their way to rank 0."""
    return backwards(deal(pieces))


def backwards(rounds: Iterable[Round]) -> Iterator[Round]:
    """The same rounds in reverse order, with every message sent back to its source."""
    for times, transfers in reversed(list(rounds)):
        yield times, [(dest, source, size) for source, dest, size in transfers]


def ring(pieces: list[int], first: int, times_combined: int) -> Iterator[Round]:
    """In round t rank r passes piece r + first - t on to rank r + 1."""
    p = len(pieces)
    for t in range(p - 1):
        yield times_combined, [(r, (r + 1) % p, pieces[(r + first - t) % p]) for r in range(p)]


def passed_on(p: int, n: int, num_combining: int) -> Iterator[Round]:
    """Each rank passes the array on; the first `num_combining` receivers combine it with theirs."""
    for r in range(p - 1):
        yield int(r < num_combining), [(r, r + 1, n)]


def bruck_gather(pieces: list[int]) -> Iterator[Round]:
    """In round k rank r gives its first 2^k pieces, r and on, to rank r - 2^k.

    In the last round it gives only as many as that rank lacks.
    """
    p, have = len(pieces), 1
    while have < p:
        num = min(have, p - have)
        yield 0, [(r, (r - have) % p, sum(pieces[(r + i) % p] for i in range(num)))
                  for r in range(p)]
        have *= 2


def shifts(p: int, n: int, first: int, later: int) -> Iterator[Round]:
    """In round k each rank sends to the rank 2^k further on, if there is one.

    A rank combines its first message `first` times, and the others `later` times.
    """
    for k in range((p - 1).bit_length()):
        arrivals = [(r, r + 2**k, n) for r in range(p - 2**k)]
        yield (first if k == 0 else later), arrivals


def exchange(table: list, times_combined: int = 0) -> Iterator[Round]:
    """In round t each rank sends a piece to the rank t further on; table[i][j] goes from i to j."""
    p = len(table)
    for t in range(1, p):
        yield times_combined, [(r, (r + t) % p, table[r][(r + t) % p]) for r in range(p)]


def bruck_exchange(table: list) -> Iterator[Round]:
    """In round k each piece whose distance has bit k jumps from its present rank by 2^k."""
    p = len(table)
    for k in range((p - 1).bit_length()):
        load = [0] * p
        for source in range(p):
            for distance in range(p):
                if distance >> k & 1:
                    at = (source + distance % 2**k) % p
                    load[at] += table[source][(source + distance) % p]
        yield 0, [(r, (r + 2**k) % p, load[r]) for r in range(p)]


def swap_all(p: int, n: int) -> Iterator[Round]:
    """p is a power of two: in round k each rank swaps all n elements with the rank 2^k away."""
    for k in range(p.bit_length() - 1):
        yield 1, [(r, r ^ 2**k, n) for r in range(p)]


def halving(pieces: list[int]) -> Iterator[Round]:
    """p is a power of two: each rank gives its partner the partner's half, far partners first."""
    p = len(pieces)
    for k in reversed(range(p.bit_length() - 1)):
        yield 1, [(r, r ^ 2**k, block(pieces, r ^ 2**k, k)) for r in range(p)]


def doubling(pieces: list[int]) -> Iterator[Round]:
    """p is a power of two: each rank gives its partner all pieces so far, near partners first."""
    p = len(pieces)
    for k in range(p.bit_length() - 1):
        yield 0, [(r, r ^ 2**k, block(pieces, r, k)) for r in range(p)]


def block(pieces: list[int], rank: int, k: int) -> int:
    """Elements of the aligned block of 2^k pieces around `rank`."""
    start = rank >> k << k
    return sum(pieces[start:start + 2**k])


def core_of(p: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(core, pairs): the 2^⌊log₂ p⌋ ranks of the core, and each other rank with its partner in it.

    They are those that `subgroup.power_of_two` picks.
    """
    extra = p - 2 ** (p.bit_length() - 1)
    pairs = [(2 * i + 1, 2 * i) for i in range(extra)]
    aside = {odd for odd, _ in pairs}
    return [r for r in range(p) if r not in aside], pairs


def renumber(rounds: Iterable[Round], ranks: Sequence[int]) -> Iterator[Round]:
    """The same rounds among `ranks`."""
    for times, transfers in rounds:
        yield times, [(ranks[s], ranks[d], size) for s, d, size in transfers]


def folded(p: int, n: int, *stages: Callable, give_back: bool = True) -> Iterator[Round]:
    """Fold the other ranks into the core, run the stages among the core, and unfold.

    First each other rank gives its n elements to its partner, which combines them.  Each stage
    turns the lengths of the core's pieces of the vector into rounds.  With `give_back` the partners
    return the result in the end.
    """
    ranks, pairs = core_of(p)
    yield 1, [(odd, even, n) for odd, even in pairs]
    for stage in stages:
        yield from renumber(stage(cut(n, len(ranks))), ranks)
    if give_back:
        yield 0, [(even, odd, n) for odd, even in pairs]


def folded_scatter(pieces: list[int]) -> Iterator[Round]:
    """Halving among the core; a rank of the core reduces its partner's piece too."""
    ranks, pairs = core_of(len(pieces))
    yield 1, [(odd, even, sum(pieces)) for odd, even in pairs]
    yield from renumber(halving(with_partners(pieces)), ranks)
    yield 0, [(even, odd, pieces[odd]) for odd, even in pairs]


def folded_gather(pieces: list[int]) -> Iterator[Round]:
    """Doubling among the core; a rank of the core brings its partner's piece too."""
    ranks, pairs = core_of(len(pieces))
    yield 0, [(odd, even, pieces[odd]) for odd, even in pairs]
    yield from renumber(doubling(with_partners(pieces)), ranks)
    yield 0, [(even, odd, sum(pieces)) for odd, even in pairs]


def with_partners(pieces: list[int]) -> list[int]:
    """For each rank of the core, the length of its piece and its partner's together."""
    ranks, pairs = core_of(len(pieces))
    partner = {even: odd for odd, even in pairs}
    return [pieces[r] + (pieces[partner[r]] if r in partner else 0) for r in ranks]


def blocked_ring(p: int, n: int, length: int) -> Iterator[Round]:
    """The all-reduce ring on one block of `length` elements after another; n = 0 is one block."""
    for start in range(0, max(1, n), length):
        pieces = cut(min(length, n - start), p)
        yield from ring(pieces, -1, 1)
        yield from ring(pieces, 0, 0)


def rabenseifner(p: int, n: int) -> Iterator[Round]:
    """Halving, then doubling, among the core."""
    return folded(p, n, halving, doubling)


def in_each_node(sizes: Sequence[int],
                 rounds_in_node: Callable[[int], Iterable[Round]]) -> Iterator[Round]:
    """The rounds of each node, one node after another: nodes share no rank, so they overlap."""
    for start, size in zip(starts_of(sizes), sizes):
        yield from renumber(rounds_in_node(size), range(start, start + size))


def starts_of(sizes: Sequence[int]) -> list[int]:
    """The first rank of each node."""
    return [0, *accumulate(sizes[:-1])]


def hierarchical(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Trees within the nodes; Rabenseifner's algorithm between the nodes' first ranks."""
    return chain(in_each_node(sizes, lambda size: collect(size, n)),
                 renumber(rabenseifner(len(sizes), n), starts_of(sizes)),
                 in_each_node(sizes, lambda size: spread(size, n)))


def torus(sizes: Sequence[int], n: int) -> Iterator[Round]:
    """Rings within the nodes, one ring between the nodes for each piece, and rings within again.

    There are as many pieces as the smallest node has ranks; the other ranks have an empty piece.
    """
    width = min(sizes)
    pieces = cut(n, width)

    def within(first: int, times_combined: int) -> Iterator[Round]:
        return in_each_node(sizes, lambda size: ring(
            pieces + [0] * (size - width), first, times_combined))

    between = (round_ for i, piece in enumerate(pieces) for round_ in renumber(
        blocked_ring(len(sizes), piece, max(1, piece)), [start + i for start in starts_of(sizes)]))
    return chain(within(-1, 1), between, within(0, 0))
