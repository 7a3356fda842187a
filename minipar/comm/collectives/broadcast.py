"""Broadcast: one rank's array for everyone.

    before   rank 0: a   rank 1: ·   rank 2: ·
    after    rank 0: a   rank 1: a   rank 2: a

As a linear map over all ranks its transpose is the reduce.
"""

import numpy as np

from ...backend import Array
from ..chunks import check_out, find_algorithm
from ..communicator import Communicator


def binomial(comm: Communicator, array: Array, root: int) -> None:
    """⌈log₂ p⌉ rounds of n bytes: in each round everyone who has the array passes it on.

        round 0   0 ─▶ 1                        with ranks counted from the root
        round 1   0 ─▶ 2   1 ─▶ 3
        round 2   0 ─▶ 4   1 ─▶ 5   2 ─▶ 6   3 ─▶ 7

    Thakur, Rabenseifner & Gropp 2005, section 4.3.
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


ALGORITHMS = {"binomial": binomial, "auto": binomial}


def broadcast(comm: Communicator, array: Array, root: int = 0, algorithm: str = "auto",
              out: Array | None = None) -> Array:
    """The array of rank `root`, on every rank.

    On the others `array` gives the shape and dtype; it is not changed unless it is `out`.
    """
    comm.check_peer(root, "root")
    send = find_algorithm(ALGORITHMS, algorithm)
    check_out(out, array, array.shape)
    if out is None:
        out = np.empty_like(array)
    if out is not array:
        out[...] = array
    with comm.collective("broadcast", array, root=root, algorithm=algorithm):
        send(comm, out, root)
    return out
