"""How long a schedule takes: every action starts when its rank is free and what it needs is there.

    rank 0  ▐0F0▌▐0F1▌            ▐  0B0  ▌        start = max(end of the rank's action before,
                  ╲              ╱                            arrival of what it needs)
    rank 1        ▐1F0▌▐  1B0  ▌

Sends take none of a rank's time.  A message is as long under way as the simulated cluster says
(comm/simulated.py): it starts when it is sent and the ports of both ranks are free, which it keeps
for bytes / bandwidth, and arrives the latency after that.

    bubble of the total = idle time / (ranks × makespan)       GPipe, 1F1B: (p - 1) / (m + p - 1)
    bubble of the ideal = idle time / time at work                          (p - 1) / m
"""

import gc
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from ....comm.simulated.topology import Link
from ....comm.trace import Message
from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .dependencies import OPS, Op, needs, sent
from .schedules import placement_of
from .timeline import Interval, Timeline
from .validate import Fault, find_fault

FREE_LINK = Link(0.0, inf)


class Times(NamedTuple):
    """Seconds that one stage takes for one microbatch; B takes as long as I and W."""

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0

    def of(self, kind: str) -> float:
        """Seconds of an action of that kind."""
        return {FORWARD: self.forward, INPUT: self.input, WEIGHT: self.weight,
                BACKWARD: self.input + self.weight}[kind]

    def shared(self, num: int) -> "Times":
        """The times of one of `num` stages that share this one's layers."""
        return Times(*(time / num for time in self))


DEFAULT = Times()


def simulate(schedule: Schedule, times: Times | Sequence[Times] = DEFAULT,
             placement: Placement | None = None, link: Link = FREE_LINK,
             message_bytes: int = 0) -> Timeline:
    """When each action starts and ends, each message too.

    `times`: of every stage, or a list of one for each.  A message is `message_bytes` long.
    Raises ValueError with the sentence that says what is wrong with the schedule (validate.py).
    """
    placement = placement_of(schedule) if placement is None else placement
    fault = find_fault(schedule, placement)
    if fault:
        raise ValueError(fault.sentence)
    return _Run(schedule, times, placement, link, message_bytes).play()


def simulate_until(fault: Fault, schedule: Schedule, times: Times | Sequence[Times] = DEFAULT,
                   placement: Placement | None = None) -> Timeline:
    """What is done of a bad schedule: ranks stop before what is wrong, others may wait for them."""
    placement = placement_of(schedule) if placement is None else placement
    rows = [row[:number] for row, number in zip(schedule, fault.reached)]
    return _Run(rows, times, placement, FREE_LINK, 0).play()


class _Run:
    """The schedule, played in time."""

    def __init__(self, schedule: Schedule, times: Times | Sequence[Times], placement: Placement,
                 link: Link, message_bytes: int):
        if isinstance(times, Times):
            times = [times] * len(placement)
        if len(times) != len(placement):
            raise ValueError(f"{len(placement)} stages take as many times, not {len(times)}: give "
                             "one for each")
        self.seconds = [{kind: each.of(kind) for kind in OPS} for each in times]
        self.schedule, self.placement, self.link = schedule, placement, link
        self.transfer, self.num_bytes = message_bytes / link.bandwidth, message_bytes
        num_ranks = len(schedule)
        self.timeline = Timeline(num_ranks)
        self.position, self.port_out, self.port_in = ([0] * num_ranks for _ in range(3))
        self.done: dict[Op, float] = {}           # when, for the same rank
        self.arrived: dict[Op, float] = {}        # when, on the rank that it is sent to
        self.waiting: dict[Op, tuple[int, float]] = {}    # for what: which rank, since when
        self.ends: list[tuple[float, int]] = []     # a heap: when a rank ends its action

    def play(self) -> Timeline:
        """Play until nothing is left, or nobody can go on."""
        collecting = gc.isenabled()
        gc.disable()                # the intervals that there are would be scanned again and again
        try:
            for rank in range(len(self.schedule)):
                self.go_on(rank, 0.0)
            while self.ends:
                self.end_one(*heappop(self.ends))
        finally:
            if collecting:
                gc.enable()
        return self.timeline

    def end_one(self, now: float, rank: int) -> None:
        """The rank has done its action: others may need it, and it goes on."""
        action = self.schedule[rank][self.position[rank]]
        self.position[rank] += 1
        for kind in OPS[action.kind]:
            self.done[kind, action.stage, action.microbatch] = now
        self.send(rank, action, now)
        self.go_on(rank, now)

    def go_on(self, rank: int, now: float) -> None:
        """The rank has been free since `now`: it starts its next action if all is there."""
        row, position = self.schedule[rank], self.position[rank]
        if position == len(row):
            return
        action = row[position]
        for need in needs(action, len(self.placement)):
            there = self.done if self.placement[need[1]] == rank else self.arrived
            if need not in there:
                self.waiting[need] = rank, now
                return
            now = max(now, there[need])
        end = now + self.seconds[action.stage][action.kind]
        self.timeline.intervals.append(Interval(rank, *action, now, end))
        heappush(self.ends, (end, rank))

    def send(self, rank: int, action: Action, now: float) -> None:
        """What another rank needs of the action is on its way; that rank knows when it is there."""
        message = sent(action, len(self.placement))
        if message is None or self.placement[message[1]] == rank:
            return
        part, dest = message[0], self.placement[message[1]]
        start = max(now, self.port_out[rank], self.port_in[dest])
        self.port_out[rank] = self.port_in[dest] = start + self.transfer
        self.arrived[part] = end = start + self.transfer + self.link.latency
        self.timeline.messages.append(
            Message(rank, dest, self.num_bytes, str(action), now, start, end))
        if part in self.waiting:
            self.go_on(*self.waiting.pop(part))
