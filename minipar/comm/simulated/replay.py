"""Replay a trace: the time that the same messages and computation take on another cluster.

    trace ──program of each rank──▶  send 8 kB to 1 · wait · compute 2 ms · …  ──▶ Cluster ──▶ time

Each rank of the other cluster repeats the actions of the same rank in the trace, in the same order.
Its arrays have a size and no contents.  The simulator itself computes the time: on the cluster of
the trace it is the same, to the bit.  Like the LogP model (Culler et al. 1993), this accounts for
overlap, ports and waiting; but each link may have its own latency and bandwidth.

    replay(trace, Cluster(4, latency=1, bandwidth=inf), compute=0)      the rounds of a collective
    replay(trace, Cluster(4, latency=0, bandwidth=1), compute=0)        bytes on its critical path
"""

from typing import Any

from ..trace import Trace
from . import Cluster
from .communicator import SimulatedCommunicator
from .matching import SimulatedRequest


class Blank:
    """Stands for an array of `nbytes` bytes without contents."""

    __slots__ = ("nbytes",)
    dtype, shape = None, ()

    def __init__(self, nbytes: int):
        self.nbytes = nbytes

    def __setitem__(self, where: object, value: object) -> None:
        """Ignore the value."""

    def copy(self) -> "Blank":
        """Itself: an eager send buffers its array."""
        return self


def replay(trace: Trace, cluster: Cluster, compute: float = 1.0) -> float:
    """Seconds that the run in `trace` takes on `cluster`, which logs it again if it traces.

    The trace must have been asked for programs: Cluster(n, trace="replay"), or
    comm.start_trace(replay=True).  Computation takes `compute` times as long as it did (0: messages
    alone).  A trace of real ranks knows only the computation that was reported.

    Raises ValueError if the trace has no programs, or not as many ranks as the cluster, or began
    after a communicator that it uses was made.  Raises it also for an all-reduce in shared memory,
    and if the program depended on what was done first (Works, `test`, `wait_any`).  What is done
    first may differ on other links.  Raises Deadlock if no rank can continue, as with the trace of
    a run that hung.
    """
    if not trace.programs:
        raise ValueError('the trace has no programs to play: make it by Cluster(n, '
                         'trace="replay") or comm.start_trace(replay=True)')
    if sorted(trace.programs) != list(range(cluster.num_ranks)):
        raise ValueError(f"the trace has the programs of {len(trace.programs)} ranks, the cluster "
                         f"{cluster.num_ranks} ranks: give one of as many")
    programs = {rank: list(program) for rank, program in trace.programs.items()}
    _, seconds = cluster.run(lambda comm: play(comm, programs[comm.rank], compute))
    return seconds


def play(world: SimulatedCommunicator, program: list[tuple], compute: float = 1.0) -> None:
    """Perform the program of one rank (see `trace.py`) as that rank."""
    comms: dict[int, Any] = {0: world}
    requests: dict[int, SimulatedRequest] = {}

    def comm_of(group: int) -> SimulatedCommunicator:
        if group not in comms:
            raise ValueError(f"rank {world.rank} used a communicator that no split() in the trace "
                             "made: start the trace before split(), and call collectives "
                             "themselves, not through start_work()")
        return comms[group]

    for number, (kind, *details) in enumerate(program):
        if kind in ("send", "recv"):
            group, tag, peer, num_bytes = details
            post = comm_of(group).isend if kind == "send" else comm_of(group).irecv
            requests[number] = post(Blank(num_bytes), peer, tag)
        elif kind == "wait":
            if details[0] in requests:          # else it was posted before the trace began
                requests[details[0]].wait()
        elif kind == "compute":
            name, seconds = details
            world.spend(name, seconds * compute)
        elif kind == "split":
            group, color, key, new_group = details
            comms[new_group] = comm_of(group).split(color, key)
        elif kind == "world":
            comms[details[0]] = world
        elif kind == "shared":
            raise ValueError(f"rank {world.rank} all-reduced in shared memory, without messages to "
                             "play again: trace a run with another algorithm")
        else:
            raise ValueError(f"rank {world.rank} asked whether something was done, and went on by "
                             "the answer: run the program itself on the other cluster")
