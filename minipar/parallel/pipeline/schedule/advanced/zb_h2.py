"""ZB-H2: zero-bubble scheduling with twice the activations, and no idle time between the ends.

    stage 0   F F F F F I W F I W I W …          each stage runs 2(p - 1 - s) forwards ahead:
    stage 1   · F F F I F I F I W F I …          enough that its first gradient is there in time
    stage 2   · · F I F I F I F I W F …          at most 2p - 1 microbatches are held

A rule decides action by action, with F = I = W = 1.  In a round each stage does a forward, if it
has one left, and then, from the last stage on, an I.  Before either, the stage does W: while it
would hold too many microbatches, and in the time until its input arrives.  Where stage s is two
forwards ahead of stage s + 1, stage s may leave out a forward, so that gradients come first.  One
schedule is made with this exception and one without, and the shorter one wins.

A step takes 3m + p - 1: each stage works without a pause, and the stages end p - 1 apart.  So
stages do not wait for a norm over all gradients: the optimizer would step, check, and roll back.
Qi, Wan, Huang & Lin 2023, Zero bubble pipeline parallelism, section 3 (limit 2p).
"""

from collections import Counter

from ..actions import FORWARD, INPUT, WEIGHT, Action, Schedule
from ..schedules import check_counts


def zb_h2(num_ranks: int, num_microbatches: int) -> Schedule:
    """The shorter of the two schedules that the rule makes."""
    check_counts(num_ranks, num_microbatches)
    rules = [_Rule(num_ranks, num_microbatches, first) for first in (True, False)]
    return min(rules, key=_Rule.longest).schedule


class _Rule:
    """A schedule in the making: its rows, and when each stage is free."""

    def __init__(self, p: int, m: int, gradients_first: bool):
        self.p, self.m, self.gradients_first = p, m, gradients_first
        self.schedule: Schedule = [[] for _ in range(p)]
        self.free, self.idle = [0] * p, [0] * p
        self.num: Counter[tuple[str, int]] = Counter()      # of each kind on each stage
        self.end: dict[tuple[str, int, int], int] = {}      # when each action ends
        self.rounds()

    def rounds(self) -> None:
        """Add forwards ahead; then, for each microbatch, forwards and I; then the W that are left.
        """
        for stage in range(self.p):
            self.put(FORWARD, stage, min(1 + 2 * (self.p - 1 - stage), self.m))
        for i in range(self.m):
            if i:
                self.forwards()
            for stage in reversed(range(self.p)):
                self.fill(stage, (INPUT, stage + 1, i))
                if stage == 0 and self.num[FORWARD, 0] == self.m:
                    self.put(WEIGHT, 0, i - self.num[WEIGHT, 0])
                self.put(INPUT, stage)
        for stage in range(self.p):
            self.put(WEIGHT, stage, self.m - self.num[WEIGHT, stage])

    def put(self, kind: str, stage: int, times: int = 1) -> None:
        """Add the next actions of a kind on a stage, each as soon as its input is there."""
        for _ in range(times):
            i = self.num[kind, stage]
            neighbour = {FORWARD: stage - 1, INPUT: stage + 1}.get(kind, -1)
            start = max(self.free[stage], self.end.get((kind, neighbour, i), 0))
            self.idle[stage] += start - self.free[stage] if self.num[FORWARD, stage] else 0
            self.free[stage] = self.end[kind, stage, i] = start + 1
            self.num[kind, stage] += 1
            self.schedule[stage].append(Action(kind, stage, i))

    def fill(self, stage: int, awaited: tuple[str, int, int]) -> None:
        """Add W until the awaited input arrives, as long as there are some to do."""
        while self.num[WEIGHT, stage] < self.num[INPUT, stage] \
                and self.free[stage] < self.end.get(awaited, 0):
            self.put(WEIGHT, stage)

    def too_many(self, stage: int) -> int:
        """The number of W to do before the next forward, so that no more than 2p - 1 are held."""
        return max(0, self.num[FORWARD, stage] + 1 - self.num[WEIGHT, stage] - (2 * self.p - 1))

    def forwards(self) -> None:
        """Add a forward on all stages after the last stage that leaves it out."""
        without = [stage for stage in range(self.p) if not self.wants_forward(stage)]
        for stage in range(1 + max(without, default=-1), self.p):
            self.put(WEIGHT, stage, self.too_many(stage))
            self.fill(stage, (FORWARD, stage - 1, self.num[FORWARD, stage]))
            self.put(FORWARD, stage)

    def wants_forward(self, stage: int) -> bool:
        """False if none is left, or gradients come first and the next stage is busy enough."""
        done = self.num[FORWARD, stage]
        ahead = done - self.num[FORWARD, stage + 1]
        if not self.gradients_first or done == self.m or stage + 1 == self.p or ahead < 2:
            return done < self.m
        gradient = self.free[stage + 1] + 2             # after an F and an I there
        in_time = self.free[stage] + 1 + self.too_many(stage) <= gradient
        return self.free[stage] < gradient and (
            in_time or gradient - self.free[stage] > max(self.idle) - self.idle[stage])

    def longest(self) -> int:
        """The longest time that a stage takes from its first action to its last."""
        return max(end - self.end[FORWARD, stage, 0] for stage, end in enumerate(self.free))
