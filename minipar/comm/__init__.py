"""Ranks that talk to each other: real MPI or a simulated cluster, and collectives on either."""

from .communicator import Communicator, Request
from .simulated import Cluster
from .simulated.deadlock import Deadlock
from .simulated.mismatch import CollectiveMismatch
from .trace import Message, Span, Trace

__all__ = ["Cluster", "CollectiveMismatch", "Communicator", "Deadlock", "Message",
           "Request", "Span", "Trace"]
