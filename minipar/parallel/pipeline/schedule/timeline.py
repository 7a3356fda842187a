"""The timeline of a pipeline: one value for simulated and for measured runs.

    Timeline(intervals, messages)          an interval: rank 2 did 2F0 from 1.0 s to 2.0 s
                                           a message: rank 1 sent it to rank 2, from … to …

Pictures and metrics (bubble, memory) are made from this value alone.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ....comm.trace import Message, Trace
from .actions import Action


class Interval(NamedTuple):
    """One action of a rank, with its start and end in seconds."""

    rank: int
    kind: str
    stage: int
    microbatch: int
    start: float
    end: float

    @property
    def action(self) -> Action:
        """The action without its times."""
        return Action(self.kind, self.stage, self.microbatch)


@dataclass
class Timeline:
    """The actions of all ranks with their times, and the messages between them.

    A rank does one action at a time: its intervals never overlap.  Time 0 is arbitrary; pictures
    and metrics begin with the first action.  `world_ranks` are the ranks' numbers in the whole
    world, if these differ.
    """

    num_ranks: int
    intervals: list[Interval] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    world_ranks: list[int] | None = None

    def name(self, rank: int) -> str:
        """The name of a rank for people, with its number in the whole world."""
        return f"rank {rank if self.world_ranks is None else self.world_ranks[rank]}"

    def first(self) -> float:
        """The start of the first action; 0 if there is none."""
        return min((interval.start for interval in self.intervals), default=0.0)

    def makespan(self) -> float:
        """Seconds from the first action's start to the last one's end."""
        return max((interval.end for interval in self.intervals), default=0.0) - self.first()

    def row(self, rank: int) -> list[Interval]:
        """The intervals of `rank`, in order."""
        return sorted((i for i in self.intervals if i.rank == rank), key=lambda i: i.start)

    def rows(self) -> list[list[Interval]]:
        """The intervals of each rank, in order."""
        found: list[list[Interval]] = [[] for _ in range(self.num_ranks)]
        for interval in sorted(self.intervals, key=lambda i: i.start):
            found[interval.rank].append(interval)
        return found

    def as_trace(self) -> Trace:
        """The same as a Trace with spans named "2F0", which trace pictures and Perfetto take."""
        return Trace([tuple(m) for m in self.messages],
                     [(i.rank, str(i.action), i.start, i.end) for i in self.intervals])
