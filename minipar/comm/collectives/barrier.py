"""Barrier: no rank continues before all have arrived.  Messages are empty: only rounds cost."""

import numpy as np

from ..arguments import find_algorithm
from ..communicator import Communicator


def dissemination(comm: Communicator) -> None:
    """⌈log₂ p⌉ rounds: in round k each rank signals the rank 2^k further on.

        round 0   0 ─▶ 1 ─▶ 2 ─▶ 3 ─▶ 4 ─▶ 0       each knows that 2 ranks are here,
        round 1   0 ─▶ 2 ─▶ 4 ─▶ 1 ─▶ 3 ─▶ 0       then 4,
        round 2   0 ─▶ 4 ─▶ 3 ─▶ 2 ─▶ 1 ─▶ 0       then all

    Hensgen, Finkel & Manber 1988.
    """
    p, r, nothing, distance = comm.size, comm.rank, np.empty(0, np.uint8), 1
    while distance < p:
        comm.sendrecv(nothing, (r + distance) % p, nothing, (r - distance) % p)
        distance *= 2


def tree(comm: Communicator) -> None:
    """2⌈log₂ p⌉ rounds with 2(p-1) messages in all: up a binomial tree, and down again.

        up     0 ◀─ 1   2 ◀─ 3     then   0 ◀─ 2
        down   0 ─▶ 2              then   0 ─▶ 1   2 ─▶ 3

    Rank 0 is the first to know that all are here.
    """
    p, r, nothing = comm.size, comm.rank, np.empty(0, np.uint8)
    lowest = r & -r if r else 1 << (p - 1).bit_length()     # parent: r - lowest
    children = [r + (1 << k) for k in range(lowest.bit_length() - 1) if r + (1 << k) < p]
    for child in children:
        comm.recv(nothing, child)
    if r:
        comm.send(nothing, r - lowest)
        comm.recv(nothing, r - lowest)
    for child in reversed(children):
        comm.send(nothing, child)


def barrier(comm: Communicator, algorithm: str = "auto") -> None:
    """Collective.  Return once every rank has called it."""
    wait = find_algorithm(comm, "barrier", algorithm)
    with comm.collective("barrier", algorithm=algorithm):
        wait(comm)
