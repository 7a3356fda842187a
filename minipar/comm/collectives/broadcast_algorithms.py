"""Further ways to broadcast: for long arrays a tree is slow, since the root sends all of n again
and again.  Here every link carries each byte about once."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...backend import Array
from ..chunks import chunk_bounds
from ..communicator import Communicator
from ..cost import best_num_segments
from ..subgroup import rooted
from .all_gather import ring as ring_all_gather
from .scatter import binomial as binomial_scatter


@contextmanager
def flattened(array: Array) -> Iterator[Array]:
    """A contiguous vector of the elements of `array`, into which its changes are written back."""
    work = array if array.flags.c_contiguous else array.copy()
    yield work.reshape(work.size)
    if work is not array:
        array[...] = work


def chain(comm: Communicator, array: Array, root: int) -> None:
    """p - 1 rounds, n(p-1) bytes: everyone passes the whole array on.

        0 ─▶ 1 ─▶ 2 ─▶ 3                        with ranks counted from the root

    The slowest of all, and the start of the next.  Chan et al. 2007, section 7.
    """
    pipelined_chain(comm, array, root, num_segments=1)


def pipelined_chain(comm: Communicator, array: Array, root: int,
                    num_segments: int | None = None) -> None:
    """p + k - 2 rounds, n(p+k-2)/k bytes: the chain, in k segments that follow each other.

        round 0   0 ─a▶ 1                       everyone passes on one segment
        round 1   0 ─b▶ 1 ─a▶ 2                 while the next is arriving
        round 2   0 ─c▶ 1 ─b▶ 2 ─a▶ 3

    With few ranks and a long array about n bytes, as little as can be.  Without `num_segments`,
    the k that the cost model finds best.  Chan et al. 2007, section 7.
    """
    ranks = rooted(comm, root)
    p, r = ranks.size, ranks.rank
    k = num_segments or best_num_segments(p, array.nbytes)
    with flattened(array) as flat:
        segments = [flat[a:b] for a, b in chunk_bounds(flat.size, max(1, min(k, flat.size)))]
        if r > 0:
            ranks.recv(segments[0], r - 1)
        for here, coming in zip(segments, [*segments[1:], None]):
            if 0 < r < p - 1 and coming is not None:
                ranks.sendrecv(here, r + 1, coming, r - 1)
            elif r < p - 1:
                ranks.send(here, r + 1)
            elif coming is not None and r > 0:
                ranks.recv(coming, r - 1)


def scatter_all_gather(comm: Communicator, array: Array, root: int) -> None:
    """⌈log₂ p⌉ + p - 1 rounds, 2n(p-1)/p bytes: deal the array out, then pass the pieces around.

        scatter      a b c d  ─▶  a · · ·   · b · ·   · · c ·   · · · d
        all-gather            ─▶  a b c d   a b c d   a b c d   a b c d

    For long arrays, whatever p.  Van de Geijn's; Thakur, Rabenseifner & Gropp 2005, section 4.3.
    """
    ranks = rooted(comm, root)
    with flattened(array) as flat:
        bounds = chunk_bounds(flat.size, ranks.size)
        binomial_scatter(ranks, flat, bounds)
        ring_all_gather(ranks, [flat[a:b] for a, b in bounds])
