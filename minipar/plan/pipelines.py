"""What a pipeline's schedule takes on paper: its paper's closed forms, and a bound on any schedule.

    ideal      v m (F + B) seconds: a rank that never waits
    bubble     idle time; of 1F1B (p - 1) / m of the ideal, of interleaved (p - 1) / (v m)

The formulas stand in the table of schedules (schedule/registry.py), each with the conditions under
which it holds.  Everywhere else there is `lower_bound`, which no schedule with the same placement
can beat.
"""

from collections import defaultdict
from collections.abc import Sequence

from ..parallel.pipeline.schedule.actions import Placement
from ..parallel.pipeline.schedule.registry import SCHEDULES
from ..parallel.pipeline.schedule.simulate import Times


def makespan(name: str | None, num_ranks: int, num_microbatches: int, times: Times,
             virtual_stages: int = 1) -> float | None:
    """Seconds that schedule `name` takes, by its formula; None where it has none, or no name.

    `times` are those of one stage, of `virtual_stages` on each rank.
    """
    if num_ranks == 1:
        return virtual_stages * num_microbatches * sum(times)
    formula = SCHEDULES[name].makespan if name in SCHEDULES else None
    forward, input, weight = times
    return formula and formula(p=num_ranks, m=num_microbatches, v=virtual_stages, F=forward,
                               I=input, W=weight, B=input + weight)


def in_flight(name: str | None, rank: int, num_ranks: int, num_microbatches: int,
              virtual_stages: int = 1) -> float | None:
    """The most microbatches in flight on a rank, each stage's counted; None if unknown.

    For "interleaved" with its smallest groups, which have p microbatches where p divides m.
    """
    formula = SCHEDULES[name].in_flight if name in SCHEDULES else None
    return formula and formula(r=rank, p=num_ranks, m=num_microbatches, v=virtual_stages)


def lower_bound(placement: Placement, num_microbatches: int, times: Times | Sequence[Times],
                split: bool = False) -> float:
    """Seconds that no schedule with this placement can do without, on links that take no time.

    A rank cannot begin before a forward has come down to one of its stages; then it has its work
    to do; and when its last action is a B, that has to go down to stage 0 (`split`: it may be a W,
    for which nobody waits).  A microbatch takes its way there and back.
    """
    num_stages = len(placement)
    each = [times] * num_stages if isinstance(times, Times) else list(times)
    ahead, behind = [0.0], [0.0]            # before a stage: seconds of forwards, of backwards
    for time in each:
        ahead.append(ahead[-1] + time.forward)
        behind.append(behind[-1] + time.input + (0 if split else time.weight))
    way = ahead[-1] + behind[-1] + (each[0].weight if split else 0)
    bounds, stages_of = [way], defaultdict(list)
    for stage, rank in enumerate(placement):
        stages_of[rank].append(stage)
    for mine in stages_of.values():
        work = num_microbatches * sum(sum(each[stage]) for stage in mine)
        after = 0.0 if split else min(behind[stage] for stage in mine)
        bounds.append(min(ahead[stage] for stage in mine) + work + after)
    return max(bounds)
