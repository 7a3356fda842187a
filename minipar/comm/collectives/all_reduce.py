"""All-reduce: every rank gives an array, and every rank gets the sum (or product, max, min).

    before   rank 0: a       rank 1: b       rank 2: c
    after    rank 0: a+b+c   rank 1: a+b+c   rank 2: a+b+c

A reduce-scatter followed by an all-gather is one way to do it: the ring.
"""

from collections.abc import Callable
from itertools import groupby

import numpy as np

from ...backend import Array
from ..arguments import Combine, check_out, chunk_bounds, find_algorithm, find_operator
from ..communicator import Communicator
from ..subgroup import Subgroup, power_of_two
from .all_gather import all_gather, double
from .all_gather import ring as ring_all_gather
from .broadcast import binomial as binomial_broadcast
from .reduce import binomial as binomial_reduce
from .reduce_scatter import halve
from .reduce_scatter import ring as ring_reduce_scatter

BLOCK_BYTES = 4 << 20       # of a blocked ring: the block and its temporaries should fit the cache


def ring(comm: Communicator, flat: Array, op: str | Combine) -> None:
    """2(p - 1) rounds, 2n(p-1)/p bytes: a reduce-scatter, then an all-gather, on the same ring.

        chunks     0 1 2 3         first each rank gets its own chunk reduced,
        rank 1     · Σ · ·         then it passes the sum on until all ranks have all

    No algorithm lets the busiest rank send fewer bytes, for any p.  Every chunk is summed once,
    in one order, so that all ranks get the same bits.  Patarasuk & Yuan 2009.
    """
    chunks = [flat[start:stop] for start, stop in chunk_bounds(flat.size, comm.size)]
    ring_reduce_scatter(comm, chunks, find_operator(op))
    ring_all_gather(comm, chunks)


def all_reduce(comm: Communicator, array: Array, op: str | Combine = "sum", algorithm: str = "auto",
               out: Array | None = None) -> Array:
    """Collective.  The reduction of `array` over all ranks, of its shape and dtype, on every rank.

    `op` is sum, prod, max, min or a function.  The result is written into `out`, if given.  `out`
    may be `array` itself; otherwise `array` is not changed.
    """
    find_operator(op, array)
    reduce = find_algorithm(comm, "all_reduce", algorithm, array.nbytes)
    if out is None:
        out = np.empty_like(array)
    else:
        check_out(out, array, array.shape)
    buffer = out if out.flags.c_contiguous else np.empty_like(array, order="C")
    if buffer is not array:
        buffer[...] = array
    if comm.size > 1:
        with comm.collective("all_reduce", array, op=op, algorithm=algorithm):
            reduce(comm, buffer if buffer.ndim == 1 else buffer.reshape(buffer.size), op)
    if buffer is not out:
        out[...] = buffer
    return out


def sum_over_ranks(comm: Communicator, number: float) -> float:
    """Collective.  The sum of one number over all ranks, in messages labelled "control".

    Every rank adds the numbers of all ranks, in the same order.
    """
    with comm.labelled("control"):
        return float(all_gather(comm, np.array([number], dtype=np.float64)).sum())


def blocked_ring(comm: Communicator, flat: Array, op: str | Combine,
                 block_bytes: int = BLOCK_BYTES) -> None:
    """⌈n/B⌉ · 2(p - 1) rounds, 2n(p-1)/p bytes: the ring on one block of B bytes after another.

        flat     ▓▓▓▓░░░░░░░░        reduce-scatter and all-gather of the first block,
                 ▓▓▓▓▓▓▓▓░░░░        then of the second, …

    Between ranks that share memory a message is a copy, limited by the memory's bandwidth.  A block
    that is still in the cache is summed and passed on faster than one that must be fetched again.
    So this is for long arrays on one node; over a network the extra rounds cost latency.
    """
    length = max(1, block_bytes // flat.itemsize)
    for start in range(0, max(1, flat.size), length):
        ring(comm, flat[start:start + length], op)


def recursive_doubling(comm: Communicator, flat: Array, op: str | Combine) -> None:
    """log₂ p rounds of n bytes: swap sums with ranks 1, 2, 4 … away, and add.

        round 0   0 ◀─▶ 1   2 ◀─▶ 3             each has the sum of 2 ranks,
        round 1   0 ◀─▶ 2   1 ◀─▶ 3             then of 4

    If p is no power of two, there are ⌊log₂ p⌋ + 2 rounds (`subgroup.power_of_two`).  No algorithm
    here has fewer rounds, so short arrays go this way.  Every rank adds by itself, always with the
    lower rank's part first, so that all get the same bits.  Thakur, Rabenseifner & Gropp 2005,
    section 4.
    """
    combine, arrived = find_operator(op), np.empty_like(flat)

    def swap(core: Communicator) -> None:
        r, distance = core.rank, 1
        while distance < core.size:
            core.sendrecv(flat, r ^ distance, arrived, r ^ distance)
            lower, higher = (arrived, flat) if r & distance else (flat, arrived)
            combine(lower, higher, out=flat)
            distance *= 2
    among_power_of_two(comm, flat, arrived, combine, swap)


def rabenseifner(comm: Communicator, flat: Array, op: str | Combine) -> None:
    """2·log₂ p rounds, 2n(p-1)/p bytes: a reduce-scatter by halving, an all-gather by doubling.

        halving    0: Σa · · ·        1: · Σb · ·       2: · · Σc ·       3: · · · Σd
        doubling   0: Σa Σb Σc Σd     1: Σa Σb Σc Σd    …

    If p is a power of two, it sends as many bytes as the ring, and from p = 4 on in fewer rounds.
    Otherwise it has 2⌊log₂ p⌋ rounds among the largest power of two, and two more of n bytes
    (`subgroup.power_of_two`).  Rabenseifner 2004.
    """
    combine = find_operator(op)

    def halve_and_double(core: Communicator) -> None:
        bounds = chunk_bounds(flat.size, core.size)
        halve(core, flat, bounds, combine)
        double(core, flat, bounds)
    among_power_of_two(comm, flat, np.empty_like(flat), combine, halve_and_double)


def among_power_of_two(comm: Communicator, flat: Array, arrived: Array, combine: Combine,
                       run: Callable[[Communicator], None]) -> None:
    """Call run(core) on 2^k ranks; the others add their vectors before and get the result after.

    `arrived` is a buffer as long as `flat`.
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


def tree(comm: Communicator, flat: Array, op: str | Combine) -> None:
    """2⌈log₂ p⌉ rounds of n bytes: a binomial reduce to rank 0, a binomial broadcast from it.

        0 ◀─ 1   2 ◀─ 3,   0 ◀─ 2          and back          0 ─▶ 1,   0 ─▶ 2   1 ─▶ 3

    It needs only 2(p-1) messages, but `recursive_doubling` has no more rounds and is never slower
    on equal links.  Here only half of the ranks are busy in the second round, a quarter in the
    third, and so on.
    """
    binomial_reduce(comm, flat, find_operator(op))
    binomial_broadcast(comm, flat, 0)


def hierarchical(comm: Communicator, flat: Array, op: str | Combine,
                 ranks_per_node: int | None = None) -> None:
    """Reduce within each node, all-reduce between the nodes' first ranks, broadcast within.

        node 0: 0 ◀─ 1     node 1: 2 ◀─ 3          fast links
                0 ◀──────────────▶ 2               slow links: one message where there were many
                0 ─▶ 1             2 ─▶ 3

    N nodes of p/N ranks need 2⌈log₂(p/N)⌉ rounds of n bytes within nodes, and Rabenseifner's rounds
    between the nodes.  Only one rank of each node sends to other nodes; in `torus` all of them send
    a part.  `ranks_per_node` goes to `nodes_of`.
    """
    nodes = nodes_of(comm, ranks_per_node)
    local = Subgroup(comm, next(node for node in nodes if comm.rank in node))
    binomial_reduce(local, flat, find_operator(op))
    if local.rank == 0:
        rabenseifner(Subgroup(comm, [node[0] for node in nodes]), flat, op)
    binomial_broadcast(local, flat, 0)


def torus(comm: Communicator, flat: Array, op: str | Combine,
          ranks_per_node: int | None = None) -> None:
    """Reduce-scatter within each node, all-reduce piece by piece between nodes, all-gather within.

        node 0   0 ══ 1 ══ 2    1. reduce-scatter ══ within nodes: rank i has piece i of its node's
                 │    │    │    2. all-reduce │ between nodes: all ranks number i sum piece i
        node 1   3 ══ 4 ══ 5    3. all-gather ══ within nodes

    N nodes of p/N ranks need 2(p/N - 1) + 2(N - 1) rounds and 2n(p-1)/p bytes, the bytes of a ring.
    Each node sends 2n(N-1)/N bytes over the slow links, as in `hierarchical` for N = 2^k, but all
    its ranks share that work.  There are as many pieces as the smallest node has ranks; in larger
    nodes the other ranks have an empty piece.  It is the 2D-torus all-reduce of Mikami et al. 2018
    (arXiv 1811.05233), section 3.2.
    """
    nodes = nodes_of(comm, ranks_per_node)
    row = Subgroup(comm, next(node for node in nodes if comm.rank in node))
    num_pieces = min(len(node) for node in nodes)
    bounds = chunk_bounds(flat.size, num_pieces) + [(flat.size,) * 2] * (row.size - num_pieces)
    chunks = [flat[start:stop] for start, stop in bounds]
    ring_reduce_scatter(row, chunks, find_operator(op))
    if row.rank < num_pieces:
        column = Subgroup(comm, [node[row.rank] for node in nodes])
        ring(column, chunks[row.rank], op)
    ring_all_gather(row, chunks)


def nodes_of(comm: Communicator, ranks_per_node: int | None = None) -> list[list[int]]:
    """The ranks of each node: `ranks_per_node` consecutive ranks (the last may have fewer).

    Without `ranks_per_node`, a node is a run of consecutive ranks with the same `comm.node_of`.
    Raises ValueError if `ranks_per_node` is below 1.
    """
    if ranks_per_node is not None and ranks_per_node < 1:
        raise ValueError(f"ranks_per_node={ranks_per_node}: give at least 1")
    node_of = comm.node_of if ranks_per_node is None else (lambda rank: rank // ranks_per_node)
    return [list(ranks) for _, ranks in groupby(range(comm.size), key=node_of)]
