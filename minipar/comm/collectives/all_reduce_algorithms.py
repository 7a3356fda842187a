"""Further ways to all-reduce.  A sum that several ranks work out each for itself (recursive
doubling) has the lower rank's part first on all of them, so that all get the same bits."""

import numpy as np

from ...backend import Array
from ..chunks import chunk_bounds, find_operator
from ..communicator import Communicator
from ..cost import BLOCK_BYTES
from ..subgroup import Part, power_of_two
from .all_gather_algorithms import double
from .all_reduce import ring
from .broadcast import binomial as binomial_broadcast
from .reduce import binomial as binomial_reduce
from .reduce_scatter_algorithms import halve


def blocked_ring(comm: Communicator, flat: Array, op: str, block_bytes: int = BLOCK_BYTES) -> None:
    """⌈n/B⌉ · 2(p - 1) rounds, 2n(p-1)/p bytes: the whole ring on one block of B bytes at a time.

        flat     ▓▓▓▓░░░░░░░░        reduce-scatter and all-gather of the first block,
                 ▓▓▓▓▓▓▓▓░░░░        then of the second, …

    Between ranks that share memory a message is a copy, and the time is the memory's: a block that
    is still in the cache is summed and passed on several times as fast as one that is fetched
    again.  For long arrays on one node; over a network its rounds only cost latency.
    """
    length = max(1, block_bytes // flat.itemsize)
    for start in range(0, max(1, flat.size), length):
        ring(comm, flat[start:start + length], op)


def recursive_doubling(comm: Communicator, flat: Array, op: str) -> None:
    """log₂ p rounds of n bytes: everyone swaps their sum with ever farther ranks, and adds.

        round 0   0 ◀─▶ 1   2 ◀─▶ 3             each has the sum of 2 ranks,
        round 1   0 ◀─▶ 2   1 ◀─▶ 3             then of 4

    If p is no power of two, ⌊log₂ p⌋ + 2 rounds (`part.power_of_two`).  The fewest rounds: for
    short arrays.  Thakur, Rabenseifner & Gropp 2005, section 4.5.
    """
    combine, arrived = find_operator(op), np.empty_like(flat)

    def swap(core: Communicator) -> None:
        r, distance = core.rank, 1
        while distance < core.size:
            core.sendrecv(flat, r ^ distance, arrived, r ^ distance)
            combine(*((arrived, flat) if r & distance else (flat, arrived)), out=flat)
            distance *= 2
    among_power_of_two(comm, flat, arrived, combine, swap)


def rabenseifner(comm: Communicator, flat: Array, op: str) -> None:
    """2·log₂ p rounds, 2n(p-1)/p bytes: a reduce-scatter by halving, an all-gather by doubling.

        halving    0: Σa · · ·        1: · Σb · ·       2: · · Σc ·       3: · · · Σd
        doubling   0: Σa Σb Σc Σd     1: Σa Σb Σc Σd    …

    The bytes of the ring in far fewer rounds, if p is a power of two; otherwise two rounds of n
    bytes more (`part.power_of_two`).  Rabenseifner 2004.
    """
    combine = find_operator(op)

    def halve_and_double(core: Communicator) -> None:
        bounds = chunk_bounds(flat.size, core.size)
        halve(core, flat, bounds, combine)
        double(core, flat, bounds)
    among_power_of_two(comm, flat, np.empty_like(flat), combine, halve_and_double)


def among_power_of_two(comm: Communicator, flat: Array, arrived: Array, combine, run) -> None:
    """run(core), with what the ranks that stand aside have added before, and given to them after.

    `arrived` is as long as `flat`; its contents are lost.
    """
    core, partner = power_of_two(comm)
    if core is None:
        comm.send(flat, partner)
        comm.recv(flat, partner)
        return
    if partner is not None:
        comm.recv(arrived, partner)
        combine(flat, arrived, out=flat)
    run(core)
    if partner is not None:
        comm.send(flat, partner)


def tree(comm: Communicator, flat: Array, op: str) -> None:
    """2⌈log₂ p⌉ rounds of n bytes: a binomial reduce to rank 0, a binomial broadcast from it.

        0 ◀─ 1   2 ◀─ 3,   0 ◀─ 2          and back          0 ─▶ 1,   0 ─▶ 2   1 ─▶ 3

    Only 2(p-1) messages, but never the fastest: half of the ranks idle half of the time.
    """
    binomial_reduce(comm, flat, find_operator(op))
    binomial_broadcast(comm, flat, 0)


def hierarchical(comm: Communicator, flat: Array, op: str,
                 ranks_per_node: int | None = None) -> None:
    """Reduce within each node, all-reduce between the nodes' first ranks, broadcast within.

        node 0: 0 ◀─ 1     node 1: 2 ◀─ 3          fast links
                0 ◀──────────────▶ 2               slow links: one message where there were many
                0 ─▶ 1             2 ─▶ 3

    On N nodes of p/N ranks 2⌈log₂ p/N⌉ rounds of n bytes within, and Rabenseifner's between, by one
    rank of each node: the others wait, where `all_reduce_torus.py` has them send a part.  A node
    is `ranks_per_node` consecutive ranks (the last may have fewer); without that, a run of
    consecutive ranks on one node of the communicator.
    """
    if ranks_per_node is not None and ranks_per_node < 1:
        raise ValueError(f"ranks_per_node={ranks_per_node}: give at least 1")
    node_of = comm.node_of if ranks_per_node is None else (lambda rank: rank // ranks_per_node)
    first, last, here = comm.rank, comm.rank, node_of(comm.rank)
    while first > 0 and node_of(first - 1) == here:
        first -= 1
    while last + 1 < comm.size and node_of(last + 1) == here:
        last += 1
    local = Part(comm, range(first, last + 1))
    binomial_reduce(local, flat, find_operator(op))
    if local.rank == 0:
        nodes = [node_of(rank) for rank in range(comm.size)]
        leaders = [r for r in range(comm.size) if r == 0 or nodes[r] != nodes[r - 1]]
        rabenseifner(Part(comm, leaders), flat, op)
    binomial_broadcast(local, flat, 0)
