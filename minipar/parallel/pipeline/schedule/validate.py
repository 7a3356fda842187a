"""Find the first fault of a schedule, by running it round by round, and say it in a sentence.

    rank 0   0F0 0F1 0B0 …       In each round every rank does its next action, unless that waits
    rank 1   1B0 1F0             for another rank's.  Round 0: rank 1 should do 1B0 without 1F0.
              ▲
              rank 1, position 0: "out of order"

A rank checks an action as soon as the one before is done.  The action may be unknown, on the wrong
rank, done twice, or before an op of the same rank that it needs.  If it needs an op of another
rank, its own rank waits.  If all ranks wait, an action is missing, or they wait in a circle
(deadlock).  If all rows end, an action may still be missing.  In a round with several faults, the
lowest rank's counts.
"""

from collections import defaultdict
from math import inf
from typing import NamedTuple

from .actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Placement,
    Schedule,
    Together,
    stages_on,
)
from .dependencies import OPS, Op, needs, rank_of
from .schedules import placement_of

UNKNOWN, WRONG_RANK, DOUBLE = "unknown", "wrong rank", "double"
OUT_OF_ORDER, MISSING, DEADLOCK = "out of order", "missing", "deadlock"


class Fault(NamedTuple):
    """A fault and its place: action number `position`, from 0, in the row of `rank`.

    If an action is missing, it is `action`.  The place is then where the action that needs it
    stands, or the end of the row.  Otherwise `action` stands at that place.  `others` are further
    places that the sentence names, each (rank, position): for a deadlock, the rest of the circle.
    `reached` is the number of actions that each rank can do, if those at fault stop.
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

    `placement` is the rank of each stage; if None, the rank with most of its actions.
    `num_microbatches`, if None, is one more than the highest that an action names.  Raises
    ValueError if a stage has no action.
    """
    if placement is None:
        placement = placement_of(schedule)
    if num_microbatches is None:
        num_microbatches = 1 + max((a.microbatch for row in schedule for a in row), default=0)
    return _Replay(schedule, placement, num_microbatches).find_fault()


class _Replay:
    """A schedule that runs round by round: in each, every rank does its next action or waits."""

    def __init__(self, schedule: Schedule, placement: Placement, num_microbatches: int):
        self.schedule, self.placement, self.num_microbatches = schedule, placement, num_microbatches
        self.position = [0] * len(schedule)
        self.done: dict[Op, int] = {}         # in which round

    def find_fault(self) -> Fault | None:
        """Run until all ranks have ended or wait, and return the first fault."""
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
                fault = self._check(rank, action)
                if fault:
                    first = first or fault      # its rank stops, the others may go on
                    continue
                need = self._awaited(rank, action, now)
                if need is None:
                    for kind in OPS[action.kind]:
                        op = (kind, action.stage, action.microbatch)
                        self.done[op] = now
                        fresh.append(op)
                    self.position[rank] += 1
                    following.append(rank)
                else:
                    waiting[need].append(rank)
            ready = following + [rank for op in fresh for rank in waiting.pop(op, ())]
            now += 1
        stuck = [rank for rank, row in enumerate(self.schedule) if self.position[rank] < len(row)]
        first = first or (self._stuck(stuck) if stuck else self._left_out())
        return first and first._replace(reached=tuple(self.position))

    def _next(self, rank: int) -> Action:
        return self.schedule[rank][self.position[rank]]

    def _awaited(self, rank: int, action: Action, now: float = inf) -> Op | None:
        """The op of another rank that the action, or its pair, needs and that is not done yet."""
        at = self.position[rank]
        for each in self.schedule[rank][at:at + 1 + isinstance(action, Together)]:
            for need in needs(each, len(self.placement)):
                if rank_of(self.placement, *need[1:]) != rank and self.done.get(need, inf) >= now:
                    return need
        return None

    def _check(self, rank: int, action: Action) -> Fault | None:
        """The fault of the rank's next action, as far as the rank can see."""
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
        owner = rank_of(self.placement, stage, i)
        if owner != rank:
            return self._fault(WRONG_RANK, rank, f"is on the wrong rank: stage {stage} is on rank "
                               f"{owner}")
        for op in OPS[kind]:
            if (op, stage, i) in self.done:
                at = self._places((op, stage, i), rank)[0]
                before = self.schedule[rank][at]
                return self._fault(DOUBLE, rank, f"is done already, at position {at}"
                                   if before == action else f"comes after {before} (position "
                                   f"{at}): a microbatch goes back by B, or by I and W",
                                   (rank, at))
        if isinstance(action, Together):
            second = self.schedule[rank][self.position[rank] + 1]
            if any(need == action for need in needs(second, num_stages)):
                return self._fault(OUT_OF_ORDER, rank, f"goes together with {second}, which needs "
                                   "it", (rank, self.position[rank] + 1))
        for need in needs(action, num_stages):
            if rank_of(self.placement, *need[1:]) == rank and need not in self.done:
                later = self._places(need, rank)
                if not later:
                    return self._missing(need, rank)
                at = later[0]
                return self._fault(OUT_OF_ORDER, rank, f"comes before {self.schedule[rank][at]} "
                                   f"(position {at}), which it needs", (rank, at))
        return None

    def _fault(self, kind: str, rank: int, what: str, *others: tuple[int, int]) -> Fault:
        """A fault at the rank's next action."""
        action, position = self._next(rank), self.position[rank]
        return Fault(kind, rank, position, action,
                     f"{action} (rank {rank}, position {position}) {what}", others)

    def _places(self, op: Op, rank: int) -> list[int]:
        """The positions at which `rank` does the op."""
        return [at for at, (kind, *where) in enumerate(self.schedule[rank])
                if (*where,) == op[1:] and op[0] in OPS.get(kind, ())]

    def _action(self, op: Op) -> Action:
        """The op as an action of this schedule: B, unless the schedule splits this backward."""
        kind, stage, i = op
        other = Action(WEIGHT if kind == INPUT else INPUT, stage, i)
        kinds = {action.kind for row in self.schedule for action in row}
        split = INPUT in kinds and BACKWARD not in kinds or any(
            other in row for row in self.schedule)
        return Action(kind if kind == FORWARD or split else BACKWARD, stage, i)

    def _missing(self, need: Op, rank: int) -> Fault:
        """The fault that the next action of `rank` needs an op which its owner never does."""
        position, missing = self.position[rank], self._action(need)
        owner = rank_of(self.placement, *need[1:])
        for where, row in enumerate(self.schedule):
            for at in self._places(need, where):
                return Fault(WRONG_RANK, where, at, row[at], f"{row[at]} (rank {where}, position "
                             f"{at}) is on the wrong rank: stage {need[1]} is on rank {owner}",
                             ((rank, position),))
        return Fault(MISSING, rank, position, missing, f"{missing} is missing on rank {owner}: "
                     f"{self._next(rank)} (rank {rank}, position {position}) needs it")

    def _stuck(self, stuck: list[int]) -> Fault:
        """The fault of ranks that all wait: for an op that is missing, or for each other."""
        awaited = {rank: need for rank in stuck
                   if (need := self._awaited(rank, self._next(rank))) is not None}
        for rank, need in awaited.items():
            if not self._places(need, rank_of(self.placement, *need[1:])):
                return self._missing(need, rank)
        circle = [stuck[0]]             # from a rank to the one it waits for, until one repeats
        while (owner := rank_of(self.placement, *awaited[circle[-1]][1:])) not in circle:
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
        """The first action that is missing though all rows have ended, if there is one."""
        if len(self.done) == 3 * len(self.placement) * self.num_microbatches:
            return None
        for rank, row in enumerate(self.schedule):
            for stage in stages_on(self.placement, rank):
                here = (i for i in range(self.num_microbatches)
                        if rank_of(self.placement, stage, i) == rank)
                for i in here:
                    for kind in (FORWARD, INPUT, WEIGHT):
                        if (kind, stage, i) not in self.done:
                            action = self._action((kind, stage, i))
                            return Fault(MISSING, rank, len(row), action, f"{action} is missing on "
                                         f"rank {rank}: its row ends without it")
        return None
