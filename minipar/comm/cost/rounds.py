"""Rounds of messages, from which `predict` composes the algorithms of collectives.

A round is (times combined, [(source, dest, number of elements), …]): see `alpha_beta.critical`.
Each function here yields the rounds of one pattern, a ring or a tree; it moves no data.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from .alpha_beta import Round


def cut(total: int, num_pieces: int) -> list[int]:
    """Lengths that differ by at most one, the larger first."""
    return [(total + num_pieces - 1 - i) // num_pieces for i in range(num_pieces)]


def fill(total: int, length: int) -> list[int]:
    """`length` as often as it fits into the total, and the remainder."""
    return [min(length, total - start) for start in range(0, total, length)]


def dissemination(p: int) -> Iterator[Round]:
    """To the rank 2^k further on."""
    for k in range((p - 1).bit_length()):
        yield 0, [(r, (r + 2**k) % p, 0) for r in range(p)]


def spread(p: int, n: int) -> Iterator[Round]:
    """Every rank that has the array sends it to one more."""
    for k in range((p - 1).bit_length()):
        yield 0, [(r, r + 2**k, n) for r in range(min(2**k, p - 2**k))]


def collect(p: int, n: int) -> Iterator[Round]:
    """In round k the multiples of 2^k pair up; the right one gives, the left one combines."""
    for k in range((p - 1).bit_length()):
        yield 1, [(r + 2**k, r, n) for r in range(0, p - 2**k, 2 ** (k + 1))]


def pipeline(p: int, sizes: list[int]) -> Iterator[Round]:
    """In round t rank r passes on segment t - r."""
    for t in range(p + len(sizes) - 2 if p > 1 else 0):
        yield 0, [(r, r + 1, sizes[t - r]) for r in range(p - 1) if 0 <= t - r < len(sizes)]


def from_first(pieces: list[int]) -> Iterator[Round]:
    """From rank 0 to each, one after the other."""
    for r in range(1, len(pieces)):
        yield 0, [(0, r, pieces[r])]


def deal(pieces: list[int]) -> Iterator[Round]:
    """Multiples of 2^(k+1) give what belongs to the next 2^k ranks, for k from high to low."""
    p = len(pieces)
    for k in reversed(range((p - 1).bit_length())):
        yield 0, [(r, r + 2**k, sum(pieces[r + 2**k:r + 2 ** (k + 1)]))
                  for r in range(0, p - 2**k, 2 ** (k + 1))]


def to_first(pieces: list[int]) -> Iterator[Round]:
    """From each to rank 0, one after the other."""
    return backwards(from_first(pieces))


def dealt_back(pieces: list[int]) -> Iterator[Round]:
    """Pieces join on their way to rank 0."""
    return backwards(deal(pieces))


def backwards(rounds: Iterable[Round]) -> Iterator[Round]:
    """The last round first, and every message back to its source."""
    for times, transfers in reversed(list(rounds)):
        yield times, [(dest, source, size) for source, dest, size in transfers]


def ring(pieces: list[int], first: int, times_combined: int) -> Iterator[Round]:
    """In round t rank r passes on piece r + first - t."""
    p = len(pieces)
    for t in range(p - 1):
        yield times_combined, [(r, (r + 1) % p, pieces[(r + first - t) % p]) for r in range(p)]


def bruck_gather(pieces: list[int]) -> Iterator[Round]:
    """In round k rank r gives its first 2^k pieces, r and on, to rank r - 2^k."""
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
    """In round t each rank sends the rank t further on its piece."""
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
    """p = 2^k: everything, with ever farther ranks."""
    for k in range(p.bit_length() - 1):
        yield 1, [(r, r ^ 2**k, n) for r in range(p)]


def halving(pieces: list[int]) -> Iterator[Round]:
    """p = 2^k: give the partner the pieces of its half of the block, farthest ranks first."""
    p = len(pieces)
    for k in reversed(range(p.bit_length() - 1)):
        yield 1, [(r, r ^ 2**k, block(pieces, r ^ 2**k, k)) for r in range(p)]


def doubling(pieces: list[int]) -> Iterator[Round]:
    """p = 2^k: give the partner all pieces known so far, nearest ranks first."""
    p = len(pieces)
    for k in range(p.bit_length() - 1):
        yield 0, [(r, r ^ 2**k, block(pieces, r, k)) for r in range(p)]


def block(pieces: list[int], rank: int, k: int) -> int:
    """Elements of the aligned block of 2^k pieces around `rank`."""
    start = rank >> k << k
    return sum(pieces[start:start + 2**k])


def core_of(p: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The 2^⌊log₂ p⌋ ranks of the core, and (each other rank, its partner in the core)."""
    extra = p - 2 ** (p.bit_length() - 1)
    pairs = [(2 * i + 1, 2 * i) for i in range(extra)]
    aside = {odd for odd, _ in pairs}
    return [r for r in range(p) if r not in aside], pairs


def renumber(rounds: Iterable[Round], ranks: Sequence[int]) -> Iterator[Round]:
    """The same rounds among `ranks`."""
    for times, transfers in rounds:
        yield times, [(ranks[s], ranks[d], size) for s, d, size in transfers]


def folded(p: int, n: int, *stages: Callable, give_back: bool = True) -> Iterator[Round]:
    """A vector of n reduced among the core, after the other ranks have added theirs.

    Each stage is a function of the pieces into which the core cuts the vector.  With `give_back`
    the other ranks get the result in the end.
    """
    ranks, pairs = core_of(p)
    yield 1, [(odd, even, n) for odd, even in pairs]
    for stage in stages:
        yield from renumber(stage(cut(n, len(ranks))), ranks)
    if give_back:
        yield 0, [(even, odd, n) for odd, even in pairs]


def folded_scatter(pieces: list[int]) -> Iterator[Round]:
    """Halving among the core, whose ranks answer for their partner's piece too."""
    ranks, pairs = core_of(len(pieces))
    yield 1, [(odd, even, sum(pieces)) for odd, even in pairs]
    yield from renumber(halving(with_partners(pieces)), ranks)
    yield 0, [(even, odd, pieces[odd]) for odd, even in pairs]


def folded_gather(pieces: list[int]) -> Iterator[Round]:
    """Doubling among the core, whose ranks speak for their partner too."""
    ranks, pairs = core_of(len(pieces))
    yield 0, [(odd, even, pieces[odd]) for odd, even in pairs]
    yield from renumber(doubling(with_partners(pieces)), ranks)
    yield 0, [(even, odd, sum(pieces)) for odd, even in pairs]


def with_partners(pieces: list[int]) -> list[int]:
    """The lengths of what each rank of the core stands for: its piece, and its partner's."""
    ranks, pairs = core_of(len(pieces))
    partner = {even: odd for odd, even in pairs}
    return [pieces[r] + (pieces[partner[r]] if r in partner else 0) for r in ranks]
