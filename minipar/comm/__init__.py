"""Ranks that exchange messages: real MPI processes or a simulated cluster, and collectives on both.

    communicator.py     the interface: send, recv, split (instrumentation: clock, trace)
    collectives/        all-reduce and the others, one file per operation, the ring first
    work.py             non-blocking collectives: start, progress, wait
    mesh.py             the ranks as a grid with named axes
    simulated/          any number of ranks in one process, in virtual time
    mpi/                real ranks, through mpi4py
    cost/               what a collective costs, and which algorithm is fastest
    trace.py            the log of messages and computations

The rest serves these: chunks, arguments and subgroup the collectives, errors all calls,
progress the non-blocking collectives, rank_state all communicators of a rank.
"""

from .communicator import Communicator, Request
from .simulated import Cluster
from .simulated.deadlock import Deadlock
from .simulated.mismatch import CollectiveMismatch
from .trace import Message, Span, Trace

__all__ = ["Cluster", "CollectiveMismatch", "Communicator", "Deadlock", "Message", "Request",
           "Span", "Trace"]
