"""Faults of a simulated cluster: ranks that compute slowly, and ranks that are lost.

    Cluster(4, faults=Faults(slow={2: 1.5}, lost={3: 0.5}))

Rank 2 takes 1.5 times as long over everything it computes (a *straggler*).  Rank 3 is lost at
0.5 s of virtual time, as if its machine had lost power.  The job then ends as under `mpirun`: every
other rank that is still running gets a RankLost at the line where it waits.  Its `finally` blocks
run, but can no longer communicate.  The caller of `Cluster.run` gets the same RankLost, which names
the lost rank, and what each other rank was doing.

The loss is an event in the cluster's heap, like those of the ranks: at its time a greenlet of its
own runs, and ends the run.  So faults cost nothing until they happen.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from greenlet import getcurrent, greenlet

from .cluster import Closed
from .deadlock import describe_waits


class RankLost(RuntimeError):
    """A rank was lost; `rank` is its rank in the world."""

    def __init__(self, rank: int, sentence: str):
        super().__init__(sentence)
        self.rank = rank


@dataclass
class Faults:
    """`slow`: rank -> factor on the time of its computation; `lost`: rank -> virtual seconds."""

    slow: dict[int, float] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)

    def begin(self, cluster: Any) -> None:
        """Begin a run: set the slowness of ranks, and put the losses into the queue of events."""
        for rank in (*self.slow, *self.lost):
            if not 0 <= rank < cluster.num_ranks:
                raise ValueError(f"a fault of rank {rank}: the cluster has ranks 0 … "
                                 f"{cluster.num_ranks - 1}")
        for rank in cluster.ranks:
            rank.slowness = self.slow.get(rank.world_rank, 1.0)
            rank.lost_at = self.lost.get(rank.world_rank, inf)
        # Negative numbers: at equal times a loss comes before what any rank does.
        cluster.ready += sorted(
            (when, -1 - rank, greenlet(lambda rank=rank, when=when: lose(cluster, rank, when)))
            for rank, when in self.lost.items())


def lose(cluster: Any, world_rank: int, when: float) -> None:
    """End the run, because rank `world_rank` is lost at `when`; do nothing if it has finished."""
    lost = cluster.ranks[world_rank]
    if lost.greenlet.dead and lost.clock < when:
        return
    others = [rank for rank in cluster.ranks if not rank.greenlet.dead and rank is not lost]
    waits = describe_waits(others, cluster) if others else []
    sentence = "\n  ".join([f"rank {world_rank} of {cluster.num_ranks} was lost at {when:g} s of "
                            "virtual time, and the run ended", *waits])
    cluster.sends = cluster.recvs = cluster.splits = cluster.calls = Closed()
    for rank in cluster.ranks:
        if rank.trace is not None:          # events after the loss did not happen
            rank.trace.messages[:] = [m for m in rank.trace.messages if m[-1] <= when]
            rank.trace.spans[:] = [(*span[:-1], min(span[-1], when))
                                   for span in rank.trace.spans if span[-2] < when]
    for rank in others:
        rank.greenlet.parent = getcurrent()         # so that it ends here
        with suppress(RankLost, RuntimeError):
            rank.greenlet.throw(RankLost(world_rank, sentence))
    raise RankLost(world_rank, sentence)
