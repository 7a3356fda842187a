"""Broadcast: one rank's array, copied to every rank.

    before   rank 0: a   rank 1: ·   rank 2: ·
    after    rank 0: a   rank 1: a   rank 2: a

As a linear map over all ranks its transpose is the reduce.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt

import numpy as np

from ...backend import Array
from ..arguments import check_out, chunk_bounds, find_algorithm
from ..communicator import Communicator
from ..errors import check_numbers
from ..subgroup import rooted
from .all_gather import ring as ring_all_gather
from .scatter import binomial as binomial_scatter

LATENCY, BANDWIDTH = 5e-6, 1e10     # assumed links: seconds, bytes per second


def binomial(comm: Communicator, array: Array, root: int) -> None:
    """⌈log₂ p⌉ rounds of n bytes: in each round every rank that has the array sends it to one more.

        round 0   0 ─▶ 1                        with ranks counted from the root
        round 1   0 ─▶ 2   1 ─▶ 3
        round 2   0 ─▶ 4   1 ─▶ 5   2 ─▶ 6   3 ─▶ 7

    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    p = comm.size
    me = (comm.rank - root) % p
    have = 1                                    # how many ranks have the array
    while have < p:
        if me < have and me + have < p:
            comm.send(array, (me + have + root) % p)
        elif have <= me < 2 * have:
            comm.recv(array, (me - have + root) % p)
        have *= 2


def broadcast(comm: Communicator, array: Array, root: int = 0, algorithm: str = "auto",
              out: Array | None = None) -> Array:
    """Collective.  The array of rank `root`, on every rank.

    On the other ranks `array` gives the shape and dtype; it is not changed unless it is `out`.
    """
    comm.check_peer(root, "root")
    if type(array) is not np.ndarray or array.dtype.hasobject:
        check_numbers(array)
    send = find_algorithm(comm, "broadcast", algorithm, array.nbytes)
    check_out(out, array, array.shape)
    if out is None:
        out = np.empty_like(array)
    if out is not array:
        out[...] = array
    with comm.collective("broadcast", array, root=root, algorithm=algorithm):
        send(comm, out, root)
    return out


def chain(comm: Communicator, array: Array, root: int) -> None:
    """p - 1 rounds, n(p-1) bytes: every rank passes the whole array on.

        0 ─▶ 1 ─▶ 2 ─▶ 3                        with ranks counted from the root

    For p > 3 it is slower than `binomial`; `pipelined_chain` improves on it.
    Chan et al. 2007, section 7.
    """
    pipelined_chain(comm, array, root, num_segments=1)


def pipelined_chain(comm: Communicator, array: Array, root: int,
                    num_segments: int | None = None) -> None:
    """p + k - 2 rounds, n(p+k-2)/k bytes: the chain, with the array cut into k segments.

        round 0   0 ─a▶ 1                       each rank passes on one segment
        round 1   0 ─b▶ 1 ─a▶ 2                 while it receives the next
        round 2   0 ─c▶ 1 ─b▶ 2 ─a▶ 3

    For few ranks and a long array that is about n bytes, the least possible.  Without
    `num_segments`, k is `best_num_segments`.  Chan et al. 2007, section 7.
    """
    ranks = rooted(comm, root)
    p, r = ranks.size, ranks.rank
    k = num_segments or best_num_segments(p, array.nbytes)
    with flattened(array) as flat:
        segments = [flat[a:b] for a, b in chunk_bounds(flat.size, max(1, min(k, flat.size)))]
        if r > 0:
            ranks.recv(segments[0], r - 1)
        for segment, following in zip(segments, [*segments[1:], None]):
            if 0 < r < p - 1 and following is not None:
                ranks.sendrecv(segment, r + 1, following, r - 1)
            elif r < p - 1:
                ranks.send(segment, r + 1)
            elif following is not None and r > 0:
                ranks.recv(following, r - 1)


def scatter_all_gather(comm: Communicator, array: Array, root: int) -> None:
    """⌈log₂ p⌉ + p - 1 rounds, 2n(p-1)/p bytes: scatter the array, then all-gather the pieces.

        scatter      a b c d  ─▶  a · · ·   · b · ·   · · c ·   · · · d
        all-gather            ─▶  a b c d   a b c d   a b c d   a b c d

    It is for long arrays and any p.  Van de Geijn's algorithm; see Thakur, Rabenseifner & Gropp
    2005, section 4.
    """
    ranks = rooted(comm, root)
    with flattened(array) as flat:
        bounds = chunk_bounds(flat.size, ranks.size)
        binomial_scatter(ranks, flat, bounds)
        ring_all_gather(ranks, [flat[a:b] for a, b in bounds])


def best_num_segments(p: int, num_bytes: float, latency: float = LATENCY,
                      bandwidth: float = BANDWIDTH) -> int:
    """The number of segments k for which a pipelined chain takes least time: √((p-2) n β / α).

    Its time is (p + k - 2)(α + n β / k), with α = `latency` and β = 1 / `bandwidth`.
    """
    return max(1, round(sqrt(max(p - 2, 0) * num_bytes / (latency * bandwidth))))


@contextmanager
def flattened(array: Array) -> Iterator[Array]:
    """Context: a contiguous vector of the elements of `array`; changes are written back."""
    buffer = array if array.flags.c_contiguous else array.copy()
    yield buffer.reshape(buffer.size)
    if buffer is not array:
        array[...] = buffer
