"""What is wrong with a schedule: the first thing that goes wrong when it is played, as a sentence.

    rank 0   0F0 0F1 0B0 …       In each round every rank does its next action, unless that waits
    rank 1   1B0                 for another rank's.  Round 0: rank 1 should do 1B0 without 1F0.
              ▲
              rank 1, position 0: "out of order"

A rank looks at an action as soon as the one before is done, and sees there whether it is unknown,
on the wrong rank, done before, or before what it needs of the same rank.  What it needs of another
rank it waits for.  If all ranks wait, something is missing, or they wait in a circle (deadlock).
If all rows end, something may still be missing.  Of what goes wrong in one round, the lowest rank's
counts.
"""

from collections import defaultdict
from typing import NamedTuple

from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .dependencies import OPS, Op, needs
from .schedules import placement_of

UNKNOWN, WRONG_RANK, DOUBLE = "unknown", "wrong rank", "double"
OUT_OF_ORDER, MISSING, DEADLOCK = "out of order", "missing", "deadlock"


class Fault(NamedTuple):
    """What is wrong, and where: `position` counts the actions of rank `rank` from 0.

    For what is missing it is the place of who needs it, or the end of the row that lacks it;
    `action` is then what is missing, else what stands there.  `others` are the further places that
    the sentence names, each (rank, position): of a deadlock, the rest of the circle.
    `reached`: how many of its actions each rank can do, if those at fault stop.
    """

    kind: str
    rank: int
    position: int
    action: Action
    sentence: str
    others: tuple[tuple[int, int], ...] = ()
    reached: tuple[int, ...] = ()


def find_fault(schedule: Schedule, placement: Placement | None = None,
               num_microbatches: int | None = None) -> Fault | None:
    """The first fault of the schedule, or None.

    `placement` says which rank has each stage; if None, the rank that does most of it.
    `num_microbatches`: if None, one more than the highest that is named.  Raises ValueError if
    the schedule does not say which stages there are.
    """
    if placement is None:
        placement = placement_of(schedule)
    if num_microbatches is None:
        num_microbatches = 1 + max((a.microbatch for row in schedule for a in row), default=0)
    return _Play(schedule, placement, num_microbatches).find_fault()


class _Play:
    """The schedule, played round by round."""

    def __init__(self, schedule: Schedule, placement: Placement, num_microbatches: int):
        self.schedule, self.placement, self.num_microbatches = schedule, placement, num_microbatches
        self.position = [0] * len(schedule)
        self.done: dict[Op, int] = {}         # in which round

    def find_fault(self) -> Fault | None:
        """Play until nobody can go on, and return what went wrong first."""
        first: Fault | None = None
        waiting: dict[Op, list[int]] = defaultdict(list)
        ready, now = list(range(len(self.schedule))), 0
        while ready:
            fresh: list[Op] = []
            following: list[int] = []
            for rank in sorted(ready):
                if self.position[rank] == len(self.schedule[rank]):
                    continue
                action = self._next(rank)
                fault = self._look(rank, action)
                if fault:
                    first = first or fault      # its rank stops, the others may go on
                    continue
                need = self._awaited(rank, action)
                if need is None or self.done.get(need, now) < now:
                    for kind in OPS[action.kind]:
                        part = (kind, action.stage, action.microbatch)
                        self.done[part] = now
                        fresh.append(part)
                    self.position[rank] += 1
                    following.append(rank)
                else:
                    waiting[need].append(rank)
            ready = following + [rank for part in fresh for rank in waiting.pop(part, ())]
            now += 1
        stuck = [rank for rank, row in enumerate(self.schedule) if self.position[rank] < len(row)]
        first = first or (self._stuck(stuck) if stuck else self._left_out())
        return first and first._replace(reached=tuple(self.position))

    def _next(self, rank: int) -> Action:
        return self.schedule[rank][self.position[rank]]

    def _awaited(self, rank: int, action: Action) -> Op | None:
        """What the action needs of another rank."""
        for need in needs(action, len(self.placement)):
            if self.placement[need[1]] != rank:
                return need
        return None

    def _look(self, rank: int, action: Action) -> Fault | None:
        """What is wrong with the rank's next action, as far as the rank can see."""
        kind, stage, i = action
        num_stages = len(self.placement)
        if kind not in OPS:
            return self._fault(UNKNOWN, rank, f"is of no kind: there are {', '.join(OPS)}")
        if not 0 <= stage < num_stages:
            return self._fault(UNKNOWN, rank, f"is for no stage: there are {num_stages}, 0 to "
                               f"{num_stages - 1}")
        if not 0 <= i < self.num_microbatches:
            return self._fault(UNKNOWN, rank, "is for no microbatch: there are "
                               f"{self.num_microbatches}, 0 to {self.num_microbatches - 1}")
        if self.placement[stage] != rank:
            return self._fault(WRONG_RANK, rank, f"is on the wrong rank: stage {stage} is on rank "
                               f"{self.placement[stage]}")
        for part in OPS[kind]:
            if (part, stage, i) in self.done:
                at = self._places((part, stage, i), rank)[0]
                before = self.schedule[rank][at]
                return self._fault(DOUBLE, rank, f"is done already, at position {at}"
                                   if before == action else f"comes after {before} (position "
                                   f"{at}): a microbatch goes back by B, or by I and W",
                                   (rank, at))
        for need in needs(action, num_stages):
            if self.placement[need[1]] == rank and need not in self.done:
                later = self._places(need, rank)
                if not later:
                    return self._missing(need, rank)
                at = later[0]
                return self._fault(OUT_OF_ORDER, rank, f"comes before {self.schedule[rank][at]} "
                                   f"(position {at}), which it needs", (rank, at))
        return None
    def _fault(self, kind: str, rank: int, what: str, *others: tuple[int, int]) -> Fault:
        """One at the rank's next action."""
        action, position = self._next(rank), self.position[rank]
        return Fault(kind, rank, position, action,
                     f"{action} (rank {rank}, position {position}) {what}", others)

    def _places(self, part: Op, rank: int) -> list[int]:
        """The positions at which `rank` does it."""
        return [at for at, (kind, *where) in enumerate(self.schedule[rank])
                if (*where,) == part[1:] and part[0] in OPS.get(kind, ())]

    def _action(self, part: Op) -> Action:
        """The part, as an action of this schedule: gradients come from B unless it has I."""
        kind, stage, i = part
        split = any(action.kind == INPUT for row in self.schedule for action in row)
        return Action(kind if kind == FORWARD or split else BACKWARD, stage, i)

    def _missing(self, need: Op, rank: int) -> Fault:
        """The next action of `rank` needs what its owner never does; another rank may."""
        position, owner, missing = self.position[rank], self.placement[need[1]], self._action(need)
        for where, row in enumerate(self.schedule):
            for at in self._places(need, where):
                return Fault(WRONG_RANK, where, at, row[at], f"{row[at]} (rank {where}, position "
                             f"{at}) is on the wrong rank: stage {need[1]} is on rank {owner}",
                             ((rank, position),))
        return Fault(MISSING, rank, position, missing, f"{missing} is missing on rank {owner}: "
                     f"{self._next(rank)} (rank {rank}, position {position}) needs it")

    def _stuck(self, stuck: list[int]) -> Fault:
        """All of these ranks wait: for what nobody does, or for each other."""
        awaited = {rank: self._awaited(rank, self._next(rank)) for rank in stuck}
        for rank, need in awaited.items():
            if not self._places(need, self.placement[need[1]]):
                return self._missing(need, rank)
        circle = [stuck[0]]                 # follow who waits for whom, until it comes round
        while (owner := self.placement[awaited[circle[-1]][1]]) not in circle:
            circle.append(owner)
        circle = circle[circle.index(owner):]
        first = circle.index(min(circle))
        circle = circle[first:] + circle[:first]
        waits = ", ".join(f"rank {rank} at {self._next(rank)} (position {self.position[rank]}) for "
                          f"{self._action(awaited[rank])}" for rank in circle)
        rank, *others = circle
        return Fault(DEADLOCK, rank, self.position[rank], self._next(rank), "deadlock, a circle of "
                     f"ranks that wait: {waits}", tuple((r, self.position[r]) for r in others))

    def _left_out(self) -> Fault | None:
        """All rows have ended: what was not done, of the lowest rank first."""
        if len(self.done) == 3 * len(self.placement) * self.num_microbatches:
            return None
        for rank, row in enumerate(self.schedule):
            for stage in (s for s, owner in enumerate(self.placement) if owner == rank):
                for i in range(self.num_microbatches):
                    for kind in (FORWARD, INPUT, WEIGHT):
                        if (kind, stage, i) not in self.done:
                            action = self._action((kind, stage, i))
                            return Fault(MISSING, rank, len(row), action, f"{action} is missing on "
                                         f"rank {rank}: its row ends without it")
        return None
