"""Barrier: nobody goes on until everybody is here.  Its messages are empty; only rounds count."""

import numpy as np

from ..chunks import find_algorithm
from ..communicator import Communicator


def dissemination(comm: Communicator) -> None:
    """⌈log₂ p⌉ rounds: in round k everyone tells the rank 2^k further on.

        round 0   0 ─▶ 1 ─▶ 2 ─▶ 3 ─▶ 4 ─▶ 0       each has heard of 2 ranks, itself included,
        round 1   0 ─▶ 2 ─▶ 4 ─▶ 1 ─▶ 3 ─▶ 0       then of 4,
        round 2   0 ─▶ 4 ─▶ 3 ─▶ 2 ─▶ 1 ─▶ 0       then of all

    Hensgen, Finkel & Manber 1988.
    """
    p, r, nothing, distance = comm.size, comm.rank, np.empty(0, np.uint8), 1
    while distance < p:
        comm.sendrecv(nothing, (r + distance) % p, nothing, (r - distance) % p)
        distance *= 2


def tree(comm: Communicator) -> None:
    """2⌈log₂ p⌉ rounds, but only 2(p-1) messages: up a binomial tree, and down again.

        up     0 ◀─ 1   2 ◀─ 3     then   0 ◀─ 2
        down   0 ─▶ 2              then   0 ─▶ 1   2 ─▶ 3

    Rank 0 knows first that all are here.
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


ALGORITHMS = {"dissemination": dissemination, "tree": tree, "auto": dissemination}


def barrier(comm: Communicator, algorithm: str = "auto") -> None:
    """Return once every rank has called it."""
    wait = find_algorithm(ALGORITHMS, algorithm)
    with comm.collective("barrier", algorithm=algorithm):
        wait(comm)
