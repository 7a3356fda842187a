"""The bug zoo: four short programs, each with one mistake that real programs have.

Lesson 01 runs them on three simulated ranks and shows the cluster's report on each.  Read the
report first, then the code; fix it, and run the lesson again.
"""

import numpy as np

from minipar.comm import Communicator


def wrong_order(comm: Communicator) -> None:
    """Pass an array around a ring."""
    out = np.empty(4)
    comm.recv(out, source=(comm.rank - 1) % comm.size)
    comm.send(np.ones(4), dest=(comm.rank + 1) % comm.size)


def wrong_tag(comm: Communicator) -> None:
    """Send a message from rank 0 to rank 1."""
    if comm.rank == 0:
        comm.send(np.ones(4), dest=1, tag=1)
    elif comm.rank == 1:
        comm.recv(np.empty(4), source=0, tag=2)


def wrong_peer(comm: Communicator) -> None:
    """Pass a message along the chain 0 → 1 → 2."""
    if comm.rank > 0:
        comm.recv(np.empty(4), source=(comm.rank + 1) % comm.size)
    if comm.rank < comm.size - 1:
        comm.send(np.ones(4), dest=comm.rank + 1)


def wrong_size(comm: Communicator) -> None:
    """Send four numbers from rank 0 to rank 1."""
    if comm.rank == 0:
        comm.send(np.ones(4, np.float64), dest=1)
    elif comm.rank == 1:
        comm.recv(np.empty(4, np.float32), source=0)


ZOO = (wrong_order, wrong_tag, wrong_peer, wrong_size)
