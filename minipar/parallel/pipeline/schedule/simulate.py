"""Simulate a schedule: each action starts when its rank is free and its inputs have arrived.

    rank 0  ▐0F0▌▐0F1▌            ▐  0B0  ▌        start = max(end of the rank's action before,
                  ╲              ╱                            arrival of its inputs)
    rank 1        ▐1F0▌▐  1B0  ▌

A send takes none of its rank's time.  A message travels as on the simulated cluster
(comm/simulated/).  It starts when it is sent and the ports of both ranks are free.  It keeps the
ports busy for bytes / bandwidth, and arrives one latency after that.

    bubble of the total = idle time / (ranks × makespan)       GPipe, 1F1B: (p - 1) / (m + p - 1)
    bubble of the ideal = idle time / time at work                          (p - 1) / m
"""

import gc
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from ....comm.simulated.links import Link
from ....comm.trace import Message
from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Placement, Schedule
from .dependencies import OPS, Op, cells, needs, rank_of, sent
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
    """The timeline of the schedule: start and end of each action and message.

    `times` hold for every stage, or are a list with one value per stage.  A message has
    `message_bytes`.  Raises ValueError for a schedule with a fault, naming it (validate.py).
    """
    placement = placement_of(schedule) if placement is None else placement
    fault = find_fault(schedule, placement)
    if fault:
        raise ValueError(fault.sentence)
    return _Simulation(schedule, times, placement, link, message_bytes).run()


def simulate_until(fault: Fault, schedule: Schedule, times: Times | Sequence[Times] = DEFAULT,
                   placement: Placement | None = None) -> Timeline:
    """The timeline of a schedule with a fault, up to where its ranks stop or wait."""
    placement = placement_of(schedule) if placement is None else placement
    rows = [row[:number] for row, number in zip(schedule, fault.reached)]
    return _Simulation(rows, times, placement, FREE_LINK, 0).run()


class _Simulation:
    """A schedule that runs in simulated time."""

    def __init__(self, schedule: Schedule, times: Times | Sequence[Times], placement: Placement,
                 link: Link, message_bytes: int):
        if isinstance(times, Times):
            times = [times] * len(placement)
        if len(times) != len(placement):
            raise ValueError(f"{len(placement)} stages take as many times, not {len(times)}: give "
                             "one for each")
        self.seconds = [{kind: each.of(kind) for kind in OPS} for each in times]
        self.rows, self.placement, self.link = [*map(cells, schedule)], placement, link
        self.transfer, self.num_bytes = message_bytes / link.bandwidth, message_bytes
        num_ranks = len(schedule)
        self.timeline = Timeline(num_ranks)
        self.position = [0] * num_ranks             # of each rank in its row's cells
        self.port_out, self.port_in = [0.0] * num_ranks, [0.0] * num_ranks   # when they are free
        self.done: dict[Op, float] = {}             # when, for the same rank
        self.arrived: dict[Op, float] = {}          # when, on the rank that it is sent to
        self.waiting: dict[Op, tuple[int, float]] = {}      # the rank that waits, since when
        self.ends: list[tuple[float, int]] = []     # a heap: when a rank ends its action

    def run(self) -> Timeline:
        """Run until all rows have ended or all ranks wait."""
        collecting = gc.isenabled()
        gc.disable()                # it would scan the growing list of intervals again and again
        try:
            for rank in range(len(self.rows)):
                self.start_next(rank, 0.0)
            while self.ends:
                self.end_one(*heappop(self.ends))
        finally:
            if collecting:
                gc.enable()
        return self.timeline

    def end_one(self, now: float, rank: int) -> None:
        """End the rank's action, or pair: send its results, and start the next action."""
        actions = self.rows[rank][self.position[rank]]
        self.position[rank] += 1
        for action in actions:
            for kind in OPS[action.kind]:
                self.done[kind, action.stage, action.microbatch] = now
            self.send(rank, action, now)
        self.start_next(rank, now)

    def start_next(self, rank: int, now: float) -> None:
        """Start the next action of a rank that is free since `now`, or let it wait for an input."""
        row, position = self.rows[rank], self.position[rank]
        if position == len(row):
            return
        actions = row[position]
        for need in (need for action in actions for need in needs(action, len(self.placement))):
            ready = self.done if rank_of(self.placement, *need[1:]) == rank else self.arrived
            if need not in ready:
                self.waiting[need] = rank, now
                return
            now = max(now, ready[need])
        for action in actions:
            end = now + self.seconds[action.stage][action.kind]
            self.timeline.intervals.append(Interval(rank, *action, now, end))
            now = end
        heappush(self.ends, (now, rank))

    def send(self, rank: int, action: Action, now: float) -> None:
        """Send the op of the action that another rank needs, which may be waiting for it."""
        message = sent(action, len(self.placement))
        if message is None:
            return
        op, dest = message[0], rank_of(self.placement, message[1], action.microbatch)
        if dest == rank:
            return
        start = max(now, self.port_out[rank], self.port_in[dest])
        self.port_out[rank] = self.port_in[dest] = start + self.transfer
        self.arrived[op] = end = start + self.transfer + self.link.latency
        self.timeline.messages.append(
            Message(rank, dest, self.num_bytes, str(action), now, start, end))
        if op in self.waiting:
            self.start_next(*self.waiting.pop(op))
