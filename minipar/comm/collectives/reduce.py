"""Reduce: every rank gives an array, and one rank gets the sum (or product, max, min).

    before   rank 0: a       rank 1: b   rank 2: c
    after    rank 0: a+b+c   rank 1: ·   rank 2: ·

With a broadcast of the result it is an all-reduce.
"""

import numpy as np

from ...backend import Array
from ..arguments import Combine, check_out, chunk_bounds, deliver, find_algorithm, find_operator
from ..communicator import Communicator
from ..subgroup import power_of_two, rooted
from .gather import binomial as binomial_gather
from .reduce_scatter import halve


def binomial(comm: Communicator, flat: Array, combine: Combine) -> None:
    """⌈log₂ p⌉ rounds of n bytes: a binomial broadcast backwards; sums meet on the way to rank 0.

        round 0   0 ◀─ 1   2 ◀─ 3   4 ◀─ 5   6 ◀─ 7
        round 1   0 ◀───── 2        4 ◀───── 6
        round 2   0 ◀────────────── 4

    In place: afterwards `flat` is the result on rank 0, a partial sum or its own on the others.
    Thakur, Rabenseifner & Gropp 2005, section 4.
    """
    p, r, distance = comm.size, comm.rank, 1
    arrived = np.empty_like(flat)
    while distance < p:
        if r & distance:
            comm.send(flat, r - distance)
            return
        if r + distance < p:
            comm.recv(arrived, r + distance)
            combine(flat, arrived, out=flat)
        distance *= 2


def rabenseifner(comm: Communicator, flat: Array, combine: Combine) -> None:
    """2·log₂ p rounds, 2n(p-1)/p bytes: a reduce-scatter by halving, then a binomial gather.

        halving    0: Σa · · ·   1: · Σb · ·   2: · · Σc ·   3: · · · Σd
        gather     0: Σa Σb Σc Σd

    If p is no power of two, a round of n bytes comes before that (`subgroup.power_of_two`).  It
    works in place, as `binomial` does.  Rabenseifner 2004.
    """
    core, partner = power_of_two(comm)
    if core is None:
        comm.send(flat, partner)
        return
    if partner is not None:
        arrived = np.empty_like(flat)
        comm.recv(arrived, partner)
        combine(flat, arrived, out=flat)
    bounds = chunk_bounds(flat.size, core.size)
    halve(core, flat, bounds, combine)
    binomial_gather(core, flat, bounds)


def reduce(comm: Communicator, array: Array, op: str | Combine = "sum", root: int = 0,
           algorithm: str = "auto", out: Array | None = None) -> Array | None:
    """Collective.  On `root` the reduction of `array` over all ranks; None elsewhere.

    `op` is sum, prod, max, min or a function.  The result has the shape and dtype of `array`, and
    is written into `out`, if `root` gives one.  No other array is changed.
    """
    comm.check_peer(root, "root")
    combine = find_operator(op, array)
    collect = find_algorithm(comm, "reduce", algorithm, array.nbytes)
    check_out(out, array, array.shape)
    buffer = np.empty_like(array, order="C")
    buffer[...] = array
    with comm.collective("reduce", array, op=op, root=root, algorithm=algorithm):
        collect(rooted(comm, root), buffer.reshape(buffer.size), combine)
    return deliver(buffer, out) if comm.rank == root else None
