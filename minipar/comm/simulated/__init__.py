"""The simulated cluster: any number of ranks in one process, in virtual time."""

from .cluster import Cluster
from .communicator import SimulatedCommunicator

__all__ = ["Cluster", "SimulatedCommunicator"]
