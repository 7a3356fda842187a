"""Predict a pipeline's makespan and memory: its paper's closed forms, and a bound on any schedule.

p ranks, m microbatches, v stages on each rank; a stage's forward takes F, its backward B = I + W
(I for the gradient of its input, W for those of its weights):

    ideal      v m (F + B) seconds: a rank that never waits
    bubble     makespan / ideal - 1: (p - 1) / m for 1F1B, (p - 1) / (v m) for interleaved

The formulas stand in the table of schedules (schedule/registry.py), each with the conditions under
which it holds.  Everywhere else there is `lower_bound`, which no schedule with the same placement
can beat.
"""

from collections import defaultdict
from collections.abc import Sequence

from ..pipeline.schedule.actions import Placement
from ..pipeline.schedule.dependencies import rank_of
from ..pipeline.schedule.metrics import Bubble
from ..pipeline.schedule.registry import SCHEDULES
from ..pipeline.schedule.simulate import Times


def makespan(name: str | None, num_ranks: int, num_microbatches: int, times: Times,
             virtual_stages: int = 1) -> float | None:
    """Seconds that schedule `name` takes, by its formula; None where it has none, or no name.

    `times` are those of one stage; a rank has `virtual_stages` of them.  One rank never waits: it
    takes v m (F + B) by any schedule.
    """
    if num_ranks == 1:
        return virtual_stages * num_microbatches * sum(times)
    formula = SCHEDULES[name].makespan if name in SCHEDULES else None
    forward, input, weight = times
    return formula and formula(p=num_ranks, m=num_microbatches, v=virtual_stages, F=forward,
                               I=input, W=weight, B=input + weight)


def bubble(name: str | None, num_ranks: int, num_microbatches: int, times: Times,
           virtual_stages: int = 1) -> Bubble | None:
    """Idle time as shares of the total and of the ideal, by the formula of `makespan`, or None."""
    took = makespan(name, num_ranks, num_microbatches, times, virtual_stages)
    ideal = virtual_stages * num_microbatches * sum(times)
    return None if took is None else Bubble(1 - ideal / took, took / ideal - 1)


def in_flight(name: str | None, rank: int, num_ranks: int, num_microbatches: int,
              virtual_stages: int = 1) -> float | None:
    """The most microbatches in flight on a rank, by the schedule's formula; None where it has none.

    A microbatch that is in flight in two stages of the rank counts twice.  "interleaved" has a
    formula where p divides m, for groups of p microbatches.
    """
    formula = SCHEDULES[name].in_flight if name in SCHEDULES else None
    return formula and formula(r=rank, p=num_ranks, m=num_microbatches, v=virtual_stages)


def has_formulas(name: str) -> bool:
    """True if a schedule has formulas of time and of memory for 4 ranks, 8 microbatches, W < F < I.
    """
    p, m, v = 4, 8, 2
    return None not in (makespan(name, p, m, Times(3, 4, 2), v), in_flight(name, 0, p, m, v))


def lower_bound(placement: Placement, num_microbatches: int, times: Times | Sequence[Times],
                split: bool = False) -> float:
    """Seconds that every schedule with this placement takes at least, on links that take no time.

    A rank cannot start before a forward has reached one of its stages.  Then it has its work to do.
    If the rank's last action is a B, the gradient still has to go down to stage 0.  With `split`
    the last action may be a W, for which no other rank waits.  And one microbatch must go all the
    way up and down.
    """
    num_stages = len(placement)
    each = [times] * num_stages if isinstance(times, Times) else list(times)
    ahead, behind = [0.0], [0.0]            # before a stage: seconds of forwards, of backwards
    for time in each:
        ahead.append(ahead[-1] + time.forward)
        behind.append(behind[-1] + time.input + (0 if split else time.weight))
    round_trip = ahead[-1] + behind[-1] + (each[0].weight if split else 0)
    bounds, stages_of = [round_trip], defaultdict(list)
    for stage in range(num_stages):
        for i in range(num_microbatches):
            stages_of[rank_of(placement, stage, i)].append(stage)
    for stages in stages_of.values():
        work = sum(sum(each[stage]) for stage in stages)
        after = 0.0 if split else min(behind[stage] for stage in stages)
        bounds.append(min(ahead[stage] for stage in stages) + work + after)
    return max(bounds)
