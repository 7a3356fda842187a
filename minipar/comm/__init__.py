"""Ranks that exchange messages: real MPI processes or a simulated cluster, and collectives on both.

For users:

    communicator.py     the interface: send, recv, split, clock, trace
    collectives/        all-reduce and the others, one file per operation (exscan is in scan.py)
    algorithms.py       their algorithms by name: function, rounds, closed form
    work.py             non-blocking collectives: start, progress, wait, and their engine
    mesh.py             the ranks as a grid with named axes
    simulated/          any number of ranks in one process, in virtual time
    mpi/                real ranks, through mpi4py
    cost/               what a collective costs, and which algorithm is fastest
    trace.py            the log of messages and computations

Behind them:

    arguments.py        what collectives share: cutting arrays, op=, algorithm=, out=
    rounds.py           the messages of each round, from which cost/ predicts costs
    subgroup.py         some ranks, renumbered without a message
    errors.py           what a communicator refuses
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .communicator import Communicator, Request
from .trace import Message, Span, Trace

if TYPE_CHECKING:       # what a type checker and an editor see; `_SIMULATED` says the same
    from .simulated import Cluster
    from .simulated.deadlock import Deadlock
    from .simulated.mismatch import CollectiveMismatch

__all__ = ["Cluster", "CollectiveMismatch", "Communicator", "Deadlock", "Message", "Request",
           "Span", "Trace"]
_SIMULATED = {"Cluster": "cluster", "CollectiveMismatch": "mismatch", "Deadlock": "deadlock"}


def __getattr__(name: str) -> Any:
    """Import a name of the simulated cluster on its first use: real ranks need none of it."""
    if name in _SIMULATED:
        return getattr(import_module(f".simulated.{_SIMULATED[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
