"""The simulated ranks that can continue, in the order of (virtual time, rank).

    later      2.5: 3 0 1      3.0: 2          many ranks are ready at the same time: one list each
    current    7 4 2           the list of the time that is simulated now, the lowest rank last

A list is sorted once, when its time has come.  (One heap of all ranks would compare at each step.)
"""

from bisect import insort
from heapq import heappop, heappush
from typing import Any

from greenlet import greenlet


class Ready(dict):
    """time -> the turns of the ranks that can continue then: `ready[time].append(rank.turn)`.

    A turn is (-rank, greenlet).  The hub (`Cluster.run`'s greenlet) continues when no rank can.
    """

    __slots__ = ("hub", "times", "time", "current")

    def __init__(self, hub: greenlet):
        self.hub = hub
        self.times: list[float] = []            # heap of the keys
        self.time = -1.0                        # of `current`, which is no longer in the dict
        self.current: list[tuple[int, Any]] = []

    def __missing__(self, time: float) -> list:
        heappush(self.times, time)
        turns = self[time] = []
        return turns

    def next(self) -> greenlet:
        """Remove the first turn; return its greenlet."""
        times = self.times
        while not self.current or times and times[0] == self.time:
            if not times:
                return self.hub
            self.time = heappop(times)          # never an earlier one: nothing happens in the past
            turns = self.pop(self.time)
            if self.current:                    # ready again at once: lower ranks go first
                for turn in turns:
                    insort(self.current, turn)
            else:
                turns.sort()
                self.current = turns
        return self.current.pop()[1]

    def has_before(self, time: float, rank: int) -> bool:
        """True if some rank is ready before (time, rank)."""
        if self.current and (self.time, -self.current[-1][0]) < (time, rank):
            return True
        if not self.times or self.times[0] > time:
            return False
        return self.times[0] < time or any(-turn[0] < rank for turn in self[time])

    def remove(self, turn: tuple) -> None:
        """Remove all turns of a rank."""
        for turns in (self.current, *self.values()):
            while turn in turns:
                turns.remove(turn)

    def clear(self) -> None:
        """Remove all turns."""
        super().clear()
        self.times.clear()
        self.current.clear()
